"""What an operator reads beside the events of a session in the Temporal UI."""

from __future__ import annotations

from dataclasses import replace

from clew_workflows.contract.outcomes import Usage
from clew_workflows.session import outside, ui
from tests.support.session_harness import SessionHarness

BEAR = "\U0001f43b"


def test_model_calls_count_through_the_session() -> None:
    """With the model, at the first call of a run its message, and what the session has used before."""
    session = SessionHarness(model="openai:gpt-4o")
    session.ask("Where is it?")
    assert ui.make_label(session.call, session.state) == "call 1 · gpt-4o · “Where is it?”"
    session.reply("", "add", usage=Usage(input_tokens=2104, output_tokens=180, cost_usd=0.0123, model_calls=1))
    session.answer_calls("3")
    so_far = "so far 2\u202f104 → 180 tokens, 0.0123 USD"
    assert ui.make_label(session.call, session.state) == f"call 2 · gpt-4o · {so_far}"
    session.reply("There.")
    session.ask("Thank you")
    assert ui.make_label(session.call, session.state).startswith("call 3 · gpt-4o · “Thank you” · so far 2")


def test_tool_calls_and_runs_have_names() -> None:
    """A tool call by its arguments and its id; a run by its message."""
    session = SessionHarness()
    session.ask("Add them")
    assert ui.label_run(session.state) == "run-1 · “Add them”"
    session.reply("", "add")
    assert ui.label_run(session.state) is None
    assert [ui.make_label(call, session.state) for call in session.round.calls] == ["add {} · tool00001"]


def test_waits_name_the_calls() -> None:
    """The bar of an approval has the tool, its arguments and the id to approve."""
    session = SessionHarness(tools=("ask_bank",))
    session.ask("Pay")
    session.reply("", "ask_bank")
    calls = outside.list_pending_approvals(session.state)
    assert ui.label_approval(calls, session.state) == "waits for approval of ask_bank {} · tool00001"
    assert ui.label_external(calls, session.state) == "waits for the result of ask_bank {} · tool00001"


def test_texts_can_be_left_out() -> None:
    """Where texts are encrypted labels have neither texts of the conversation nor arguments."""
    session = SessionHarness(model="openai:gpt-4o")
    session.state = replace(session.state, settings=replace(session.state.settings, shows_texts=False))
    session.ask("secret")
    assert ui.label_run(session.state) == "run-1"
    assert ui.make_label(session.call, session.state) == "call 1 · gpt-4o"
    session.reply("", "add")
    assert [ui.make_label(call, session.state) for call in session.round.calls] == ["add · tool00001"]


def test_a_label_is_short_whatever_it_names() -> None:
    """Temporal takes 400 bytes of it."""
    session = SessionHarness(model="openai:" + BEAR * 190)
    session.ask(BEAR * 1000)
    assert len(ui.make_label(session.call, session.state).encode()) <= 400
    assert 0 < len((ui.label_run(session.state) or "").encode()) <= 400
    session.reply("", *["add"] * 50)
    assert session.state.run
    assert len(ui.label_external(session.state.run.tool_calls, session.state).encode()) <= 400


def test_a_call_names_the_tools_that_its_provider_may_run() -> None:
    """Also where texts are left out: they are the configuration's."""
    session = SessionHarness(model="openai:gpt-4o", provider_tools=("web_search", "web_fetch"))
    session.state = replace(session.state, settings=replace(session.state.settings, shows_texts=False))
    session.ask("secret")
    assert ui.make_label(session.call, session.state) == "call 1 · gpt-4o · may use web_search, web_fetch"
