"""What an operator reads in the Temporal UI."""

from __future__ import annotations

from clew.outcomes import Usage
from clew_workflows.core import labels
from tests.support.session_harness import UNKNOWN, SessionHarness


def make_label(session: SessionHarness) -> str:
    return labels.describe_session(session.state, session.thread)


def test_the_steps_are_labelled() -> None:
    """With the number of the call and the model's name, and with the tool's name and the call's id."""
    session = SessionHarness(model="openai:gpt-4o")
    session.ask()
    assert labels.make_label(session.call) == "model call 1 · gpt-4o"
    session.reply("", "add")
    assert [labels.make_label(call) for call in session.round.calls] == ["tool add · tool-1"]


def test_a_label_is_short_whatever_the_model_is_called() -> None:
    """Temporal takes 400 bytes of it."""
    session = SessionHarness(model="openai:" + "\U0001f43b" * 200)
    session.ask()
    assert len(labels.make_label(session.call).encode()) < 400


def test_the_session_at_a_glance() -> None:
    """Its phase, its model, its lane and what it has used; while a run is active, whom it serves and how far."""
    session = SessionHarness()
    assert make_label(session).splitlines() == [
        "**idle** · `openai:gpt-4o` · lane `default`",
        "",
        "1 entries · 0 runs · 0 model calls · 0 → 0 tokens",
    ]
    session.ask("the secret is 42", request_id="r-1")
    session.reply("", "add", usage=Usage(input_tokens=2104, output_tokens=180))
    text = make_label(session)
    assert text.startswith("**awaiting tools**")
    assert "3 entries · 1 runs · 1 model calls · 2\u202f104 → 180 tokens" in text
    assert "`run-1` serves `r-1` · iteration 1 of 10" in text
    assert text.endswith("- tool `add` · `tool-1`")
    assert "42" not in text


def test_why_a_session_cannot_be_prepared_is_told() -> None:
    session = SessionHarness(prepare=False)
    session.answer_preparation(UNKNOWN)
    assert make_label(session).endswith("⚠ unknown_model: no such provider")
