"""Hooks: nothing is committed, run or returned that they have not accepted."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import ToolResultInput
from clew_workflows.contract.content import get_text
from clew_workflows.protocol import (
    CallModel,
    Failure,
    HooksAnswered,
    ModelStopped,
    Outdated,
    Prepare,
    Prepared,
    RunHooks,
)
from clew_workflows.session import outside
from clew_workflows.thread.context.contexts import build_context
from tests.support.session_harness import SessionHarness, carry_over, make_tool
from tests.support.threads import assert_valid


def begin(*points: Any, **config: Any) -> SessionHarness:
    """Begin a session whose workers have hooks."""
    session = SessionHarness(prepare=False, **config)
    prepare(session, *points)
    return session


def prepare(session: SessionHarness, *points: Any) -> None:
    tools = tuple(map(make_tool, session.tools))
    session.take_event(
        Prepared(
            tools=tools, profile=session.make_profile(session.state.settings.model), deployment="d-1", hooks=points
        )
    )


def get_check(session: SessionHarness) -> RunHooks:
    assert isinstance(session.effect, RunHooks)
    assert session.state.phase == "checking"
    return session.effect


def answer(session: SessionHarness, *refusals: str | None) -> None:
    check = get_check(session)
    assert len(refusals) == len(check.items)
    session.take_event(HooksAnswered(request_id=check.request_id, refusals=refusals))


def test_without_hooks_nothing_is_checked() -> None:
    session = SessionHarness()
    session.ask()
    session.reply("", "look")
    session.answer_calls("seen")
    session.reply("fine")
    assert not any(isinstance(effect, RunHooks) for effect in session.effects)


def test_a_message_is_committed_when_the_hooks_have_accepted_it() -> None:
    session = begin("request")
    request_id = session.ask("hello", metadata={"user": "ada"})
    assert session.entry_names == ["config"]
    (item,) = get_check(session).items
    assert (item.kind, item.text, item.metadata) == ("message", "hello", {"user": "ada"})
    answer(session, None)
    assert session.entry_names == ["config", "user"]
    session.reply("fine")
    assert session.find_ending(request_id) == ("completed", "final_answer")


def test_a_refused_message_is_no_message_of_the_thread_and_its_request_fails() -> None:
    """The thread has an excerpt, the error and the outcome; the next request is checked for itself."""
    session = begin("request", on_busy="queue")
    refused, accepted = session.ask("bad words", "r-1"), session.ask("good words", "r-2")
    answer(session, "rude")
    assert session.entry_names == ["config", "input", "error", "run"]
    assert session.find_ending(refused) == ("failed", "refused_by_hook")
    assert session.find_outcome(refused)["error"]["message"] == "rude"
    (rejected,) = session.events("rejected")
    assert (rejected["content"], rejected["reason"]) == ("bad words", "refused_by_hook: rude")
    answer(session, None)
    session.reply("fine")
    assert session.find_ending(accepted) == ("completed", "final_answer")
    assert session.user_texts == ["good words"]


def test_inputs_are_checked_before_they_are_committed() -> None:
    """Before the next step and after an answer. A refused one is dropped, and a refused message that joined fails."""
    session = begin("request")
    request_id = session.ask()
    answer(session, None)
    session.steer("first", at="step")
    session.steer("second", at="step")
    session.reply("", "look")
    session.answer_calls("seen")
    assert [item.text for item in get_check(session).items] == ["first", "second"]
    session.steer("third")
    joined = session.ask("fourth", on_busy="steer")
    answer(session, "no", None)
    assert session.user_texts == ["hello", "second"]
    session.reply("fine")
    assert [(item.kind, item.text) for item in get_check(session).items] == [
        ("steer", "third"),
        ("message", "fourth"),
    ]
    answer(session, "no", "never")
    assert session.find_ending(joined) == ("failed", "refused_by_hook")
    assert session.find_ending(request_id) == ("completed", "final_answer")
    assert session.user_texts == ["hello", "second"]
    assert [event["content"] for event in session.events("rejected")] == ["first", "third", "fourth"]


@pytest.mark.parametrize(
    ("refusals", "texts"), [((None, None), ["a", "b"]), (("no", None), ["b"]), (("no", "never"), [])]
)
def test_a_follow_up_run_has_the_inputs_that_the_hooks_accept(
    refusals: tuple[str | None, ...], texts: list[str]
) -> None:
    """The thread has the others, each with its reason. If none is accepted the request fails."""
    session = begin("request")
    session.ask()
    answer(session, None)
    session.steer("a")
    session.steer("b")
    session.fail()
    assert [(item.kind, item.text) for item in get_check(session).items] == [("steer", "a"), ("steer", "b")]
    answer(session, *refusals)
    assert session.user_texts == ["hello", *texts]
    rejected = [(event["content"], event["reason"]) for event in session.events("rejected")]
    assert rejected == [
        (text, f"refused_by_hook: {reason}") for text, reason in zip("ab", refusals, strict=True) if reason
    ]
    if not texts:
        assert session.find_ending("followup:run-1") == ("failed", "refused_by_hook")


def test_a_refused_tool_call_has_the_refusal_as_its_result() -> None:
    """The others run, with the arguments that a person has edited; what needs approval is approved first."""
    session = begin("tool", tools=("add", "ask_b", "c_outside"), approval_scope="round")
    session.ask()
    session.reply("", "add", "ask_b", "c_outside")
    session.approve("tool00002", arguments={"a": 2})
    assert [(item.name, item.arguments) for item in get_check(session).items] == [
        ("add", {}),
        ("ask_b", {"a": 2}),
        ("c_outside", {}),
    ]
    answer(session, "too risky", None, "not outside")
    assert [call.call.name for call in session.round.calls] == ["ask_b"]
    session.answer_calls("done")
    results = [entry.payload["content"] for entry in session.thread if entry.payload.get("role") == "tool"]
    assert results == ["refused: too risky", "refused: not outside", "done"]
    assert_valid(session.build_context(session.call).messages)


def test_a_call_that_is_approved_during_a_check_is_checked_after_it() -> None:
    """With the arguments that a person has edited. What the hooks have accepted begins with it."""
    session = begin("tool", tools=("add", "ask_b", "c_outside"))
    session.ask()
    session.reply("", "add", "ask_b", "c_outside")
    assert [item.name for item in get_check(session).items] == ["add", "c_outside"]
    assert [call.name for call in outside.list_pending_approvals(session.state)] == ["ask_b"]
    session.approve("tool00002", arguments={"a": 2})
    assert [item.name for item in get_check(session).items] == ["add", "c_outside"]
    answer(session, None, "not outside")
    assert [(item.name, item.arguments) for item in get_check(session).items] == [("ask_b", {"a": 2})]
    answer(session, None)
    assert [call.call.name for call in session.round.calls] == ["add", "ask_b"]
    session.answer_calls("1", "2")
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


def test_a_call_that_is_approved_while_others_run_is_checked_after_them() -> None:
    """A result from outside that comes during the check leaves the round as it is."""
    session = begin("tool", tools=("add", "ask_b", "c_outside"))
    session.ask()
    session.reply("", "add", "ask_b", "c_outside")
    answer(session, None, None)
    session.approve("tool00002")
    assert [call.call.name for call in session.round.calls] == ["add"]
    session.answer_call("tool00001", "1")
    assert [item.name for item in get_check(session).items] == ["ask_b"]
    session.do(ToolResultInput(tool_call_id="tool00003", content="3"))
    assert [item.name for item in get_check(session).items] == ["ask_b"]
    answer(session, None)
    assert [call.call.name for call in session.round.calls] == ["ask_b"]
    session.answer_calls("2")
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


def test_a_refused_answer_fails_the_request() -> None:
    """Its entry stays in the thread, and the outcome names no answer."""
    session = begin("answer")
    request_id = session.ask()
    session.reply("a secret")
    (item,) = get_check(session).items
    assert session.thread[item.seq or 0].payload["content"] == "a secret"
    answer(session, "secret")
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["termination_reason"]) == ("failed", "refused_by_hook")
    assert (outcome["answer_seq"], outcome["error"]["message"]) == (None, "secret")
    assert session.entry_names == ["config", "user", "assistant", "error", "run"]


@pytest.mark.parametrize("how", ["final", "max_iterations", "length"])
def test_each_answer_is_checked_once(how: str) -> None:
    """Also one that the limit of model calls or of tokens has ended. An input that arrived meanwhile goes on."""
    session = begin("answer", max_iterations=1 if how == "max_iterations" else 5)
    request_id = session.ask()
    session.reply(
        "fine", *(["look"] if how == "max_iterations" else []), stop_reason="length" if how == "length" else "stop"
    )
    answer(session, None)
    reason = {"final": "final_answer", "length": "max_output_tokens"}.get(how, how)
    assert session.find_ending(request_id) == ("completed", reason)
    if how == "final":
        session.ask()
        session.reply("one")
        session.steer("more")
        answer(session, None)
        session.reply("two")
        answer(session, None)
        assert session.state.run is None


@pytest.mark.parametrize("point", ["request", "tool", "answer"])
def test_hooks_that_fail_let_nothing_pass(point: str) -> None:
    session = begin(point)
    request_id = session.ask()
    if point != "request":
        session.reply("fine" if point == "answer" else "", *(["look"] if point == "tool" else []))
    get_check(session)
    session.take_event(Failure(type="worker_lost", message="it was lost"))
    assert session.find_ending(request_id) == ("failed", "hook_failed")
    assert "worker_lost" in session.find_outcome(request_id)["error"]["message"]
    assert session.state.phase == "idle"


def test_a_request_that_is_cancelled_while_it_is_checked_is_dropped() -> None:
    session = begin("request", on_busy="queue")
    request_id, following = session.ask("one", "r-1"), session.ask("two", "r-2")
    check = get_check(session)
    session.cancel(request_id)
    assert session.find_ending(request_id) == ("cancelled", "cancelled")
    session.take_event(HooksAnswered(request_id=check.request_id, refusals=(None,)))
    assert get_check(session).request_id == following
    session.close()
    assert session.find_ending(following) == ("cancelled", "closed")


def learn(*points: Any, **config: Any) -> tuple[SessionHarness, str]:
    """Begin a session without hooks, and a request whose first call finds the session outdated."""
    session = SessionHarness(**config)
    session.ask("before")
    session.reply("fine")
    request_id = session.ask("hello")
    assert session.call.hooks == ()
    session.take_event(Outdated(deployment="", hooks=points))
    return session, request_id


def list_texts(session: SessionHarness) -> list[str]:
    return [get_text(message["content"]) for message in session.context().messages]


@pytest.mark.parametrize("pin", [False, True])
def test_added_hooks_reach_open_sessions_with_their_next_request(pin: bool) -> None:
    """The first call finds the session outdated. Its message is committed already, and is checked before the call."""
    session, _ = learn("request", "answer", pin=pin)
    prepare(session, "request", "answer")
    (item,) = get_check(session).items
    assert session.thread[item.seq or 0].payload["content"] == "hello"
    assert item.run_id == "run-2"
    answer(session, None)
    assert session.call.iteration == 1
    session.reply("fine")
    assert get_check(session).point == "answer"
    answer(session, None)
    session.ask("again")
    assert get_check(session).hooks == ("request", "answer")


def test_a_committed_message_that_new_hooks_refuse_is_withdrawn() -> None:
    """No context shows it, and the thread rebuilt from its entries answers the same."""
    session, request_id = learn("request")
    prepare(session, "request")
    answer(session, "rude")
    assert session.find_ending(request_id) == ("failed", "refused_by_hook")
    assert session.entry_names[-4:] == ["user", "error", "ai_context_operation", "run"]
    assert list_texts(session) == ["before", "fine"]
    session.ask("again")
    answer(session, None)
    assert [message["content"] for message in session.build_context(session.call).messages] == [
        "before",
        "fine",
        "again",
    ]
    for recent in (0, 3, 100):
        carried = carry_over(session, recent_entries=recent).thread
        assert [m["content"] for m in build_context(carried).messages] == ["before", "fine", "again"]


@pytest.mark.parametrize("when", ["preparing", "checking", "failed"])
def test_a_message_that_no_hook_has_accepted_is_withdrawn(when: str) -> None:
    """Also if its request is cancelled before it is checked, and if the check fails."""
    session, request_id = learn("request")
    if when != "preparing":
        prepare(session, "request")
    if when == "failed":
        session.take_event(Failure(type="hook_failed", message="it is down"))
        assert session.find_ending(request_id) == ("failed", "hook_failed")
        assert session.find_outcome(request_id)["error"]["retryable"] is True
    else:
        session.cancel()
        assert session.find_ending(request_id) == ("cancelled", "cancelled")
    assert list_texts(session) == ["before", "fine"]


def test_inputs_that_a_run_has_committed_before_its_first_call_are_withdrawn_with_its_message() -> None:
    session = SessionHarness(steering="step")
    session.describing = False
    request_id = session.ask("hello", model="openai:gpt-4o-mini")
    joined = session.ask("and this", on_busy="steer")
    session.take_event(session.make_profile("openai:gpt-4o-mini"))
    assert session.user_texts == ["hello", "and this"]
    session.take_event(Outdated(deployment="", hooks=("request",)))
    prepare(session, "request")
    answer(session, "rude")
    assert session.find_ending(request_id) == session.find_ending(joined) == ("failed", "refused_by_hook")
    assert list_texts(session) == []


def test_a_worker_with_more_hooks_than_the_one_that_was_asked_makes_no_call() -> None:
    """Workers are being replaced. If no other worker makes the call the request fails, its message withdrawn."""
    session, request_id = learn("request")
    prepare(session)
    assert (session.call.hooks, session.call.checks) == (None, ())
    session.take_event(ModelStopped(failure=Failure(type="hook_failed", message="fewer hooks")))
    assert session.find_ending(request_id) == ("failed", "hook_failed")
    assert list_texts(session) == ["before", "fine"]


def test_removed_hooks_are_asked_for_no_more() -> None:
    """The worker says that the session is outdated; after the preparation the request is served without them."""
    session = begin("request")
    session.ask()
    session.take_event(Outdated(deployment=""))
    assert isinstance(session.effect, Prepare)
    prepare(session)
    assert isinstance(session.effect, CallModel)
    session = begin("request")
    session.ask()
    session.take_event(Outdated(deployment=""))
    prepare(session, "request", "tool")
    assert get_check(session).hooks is None


def test_a_check_is_carried_to_the_next_workflow_run() -> None:
    session = begin("request", "answer")
    session.ask()
    assert carry_over(session).effect == session.effect
    answer(session, None)
    session.reply("fine")
    carried = carry_over(session)
    assert (carried.effect, carried.state) == (session.effect, carried.state)
