"""Approvals: a round waits for people, for as long as they take."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import AlreadyResolved, InvalidInput, TooLarge, UnknownApproval
from clew_workflows.protocol import RequestedTool
from clew_workflows.session import views
from tests.support.session_harness import SessionHarness
from tests.support.threads import assert_valid

ASK = RequestedTool(name="ask_first", arguments={"a": 1})


def open_waiting_session(*tools: RequestedTool | str, **config: Any) -> SessionHarness:
    session = SessionHarness(tools=("add", "ask_first", "hold_all"), **config)
    session.ask(request_id="r")
    session.reply("", *tools)
    return session


def test_a_tool_that_needs_it_waits_for_approval() -> None:
    """The other calls of its reply run at once. The status shows what waits, with its arguments."""
    session = open_waiting_session(ASK, "add")
    assert session.state.phase == "awaiting_approval"
    assert [call.name for call, _ in session.round.calls] == ["add"]
    assert views.answer_status(session.state, session.thread)["pending_approvals"] == [
        {"tool_call_id": "tool00001", "name": "ask_first", "arguments": {"a": 1}}
    ]
    session.answer_call("tool00002", "2")
    assert (session.state.phase, session.effect) == ("awaiting_approval", None)
    session.approve("tool00001")
    assert [call.name for call, _ in session.round.calls] == ["ask_first"]
    assert session.thread[4].kind == "approval"
    assert session.thread[4].refs["tool_call_id"] == "tool00001"
    session.answer_calls("1")
    assert session.entry_names[2:] == ["assistant", "tool", "approval", "tool"]
    assert_valid(session.build_context(session.call).messages)


def test_a_call_is_run_beside_others_as_soon_as_it_is_approved() -> None:
    """The model is called after the last result, whichever call has it."""
    session = open_waiting_session(ASK, "add", ASK)
    session.approve("tool00001")
    assert [call.tool_call_id for call, _ in session.round.calls] == ["tool00001", "tool00002"]
    session.answer_call("tool00002", "2")
    session.approve("tool00003")
    assert session.state.phase == "awaiting_tools"
    assert [call.tool_call_id for call, _ in session.round.calls] == ["tool00001", "tool00003"]
    session.answer_call("tool00003", "3")
    session.answer_call("tool00001", "1")
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


@pytest.mark.parametrize("calls", [(ASK, "add", "add"), ("hold_all", "add", ASK)])
def test_a_round_can_be_approved_as_a_whole(calls: tuple[RequestedTool | str, ...]) -> None:
    """The session, or a tool of the round, says so: none of its calls begins before the decision."""
    config = {"approval_scope": "round"} if "hold_all" not in calls else {}
    session = open_waiting_session(*calls, **config)
    assert (session.state.phase, session.effect) == ("awaiting_approval", None)
    session.approve("tool00001")
    started = [call.tool_call_id for call, _ in session.round.calls]
    assert started == (["tool00001", "tool00002", "tool00003"] if config else ["tool00001", "tool00002"])
    session.cancel()


def test_nothing_of_a_round_that_was_approved_as_a_whole_has_run_before() -> None:
    """A cancellation says so to the model."""
    session = open_waiting_session("hold_all", "add")
    session.cancel()
    results = [entry.payload["content"] for entry in session.thread if entry.payload.get("role") == "tool"]
    assert [result.partition(":")[0] for result in results] == ["[not run", "[not run"]


def test_the_entry_says_who_decided() -> None:
    """No model reads it."""
    session = open_waiting_session(ASK)
    session.approve("tool00001", by="ada@example.org")
    assert session.thread[3].payload["by"] == "ada@example.org"
    session.answer_calls("1")
    assert "ada" not in str(session.build_context(session.call).messages)


def test_the_configuration_may_ask_for_approval_too() -> None:
    session = open_waiting_session("add", require_approval=("add",))
    assert session.state.phase == "awaiting_approval"


def test_a_denial_is_what_the_model_reads() -> None:
    """With its reason; nothing is run for it."""
    session = open_waiting_session(ASK)
    session.approve("tool00001", decision="deny", reason="too dear")
    assert session.entry_names[3:] == ["approval", "tool"]
    assert (session.thread[4].payload["content"], session.thread[4].payload["is_error"]) == ("denied: too dear", True)
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


def test_edited_arguments_are_run_and_the_models_stay_in_the_thread() -> None:
    """The approval's entry says what was run."""
    session = open_waiting_session(ASK)
    session.approve("tool00001", arguments={"a": 2})
    assert session.round.calls[0][0].arguments == {"a": 2}
    assert session.thread[2].payload["tool_calls"][0]["arguments"] == {"a": 1}
    assert session.thread[3].payload["arguments"] == {"a": 2}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"arguments": {"a": "two"}}, "arguments: a: "),
        ({"decision": "deny", "arguments": {"a": 2}}, "a denied call has none"),
    ],
)
def test_arguments_that_the_tool_does_not_take_are_refused(given: dict[str, Any], says: str) -> None:
    """The call still waits."""
    session = open_waiting_session(ASK)
    with pytest.raises(InvalidInput, match=says):
        session.approve("tool00001", **given)
    assert session.state.phase == "awaiting_approval"


def test_the_edited_arguments_of_a_round_are_bounded_together() -> None:
    """They are scheduled in one workflow task, and the server terminates a workflow whose task is too large."""
    session = open_waiting_session(*[ASK] * 4, approval_scope="round")
    large = {"a": 2, "text": "x" * 250_000}
    for tool_call_id in ("tool00001", "tool00002"):
        session.approve(tool_call_id, arguments=large)
    with pytest.raises(TooLarge, match="together"):
        session.approve("tool00003", arguments=large)
    session.approve("tool00003", arguments={"a": 2})
    session.approve("tool00004")
    assert [call.arguments["a"] for call, _ in session.round.calls] == [2, 2, 2, 1]


def test_the_models_own_arguments_do_not_count_as_edited() -> None:
    """The bound of a model's reply holds for those."""
    large = RequestedTool(name="ask_first", arguments={"a": 1, "text": "x" * 250_000})
    session = open_waiting_session(large, large, ASK)
    session.approve("tool00001", arguments=large.arguments)
    session.approve("tool00002")
    session.approve("tool00003", arguments=large.arguments)
    assert len(session.round.calls) == 3


def test_several_are_resolved_in_any_order() -> None:
    """A round that is approved as a whole runs with the last of them."""
    session = open_waiting_session(ASK, "add", ASK, ASK, approval_scope="round")
    session.approve("tool00004")
    session.approve("tool00001", decision="deny")
    assert (session.state.phase, session.effect) == ("awaiting_approval", None)
    session.approve("tool00003")
    assert [call.tool_call_id for call, _ in session.round.calls] == ["tool00002", "tool00003", "tool00004"]
    session.answer_calls("2", "3", "4")
    results = [entry.payload for entry in session.thread if entry.payload.get("role") == "tool"]
    assert [result["tool_call_id"] for result in results] == ["tool00001", "tool00002", "tool00003", "tool00004"]
    assert [result["content"] for result in results[1:]] == ["2", "3", "4"]


def test_what_is_not_pending_cannot_be_decided() -> None:
    """Once decided is `already_resolved`, also while others wait; all else is unknown."""
    session = open_waiting_session(ASK, ASK, "add")
    session.approve("tool00001")
    with pytest.raises(AlreadyResolved):
        session.approve("tool00001", decision="deny")
    for unknown in ("tool00003", "tool00009"):
        with pytest.raises(UnknownApproval):
            session.approve(unknown)


def test_nothing_times_out_while_people_think() -> None:
    """The request's time stands still meanwhile, for all of them together."""
    session = open_waiting_session(ASK, "add", ASK, request_timeout_seconds=100)
    session.time = 10
    session.answer_calls("2")
    session.time = 1000
    session.approve("tool00001")
    session.time = 1020
    session.answer_calls("1")
    session.time = 5000
    session.approve("tool00003")
    session.time = 5069
    session.answer_calls("3")
    assert session.call.iteration == 2
    session.time = 5070
    session.reply("", "add")
    session.answer_calls("4")
    assert session.find_ending("r") == ("failed", "timeout")


def test_a_cancel_resolves_it() -> None:
    """The call is closed, nothing is pending, and the next message works at once."""
    session = open_waiting_session(ASK)
    session.cancel()
    assert session.entry_names[3:] == ["tool", "run"]
    assert views.answer_status(session.state, session.thread)["pending_approvals"] == []
    with pytest.raises(UnknownApproval):
        session.approve("tool00001")
    session.ask("next")
    assert_valid(session.build_context(session.call).messages)


def test_the_model_reads_that_a_person_changed_the_call() -> None:
    """And to what, before what the tool said."""
    session = open_waiting_session(ASK)
    session.approve("tool00001", arguments={"a": 2})
    session.answer_calls("2 it is")
    result = session.build_context(session.call).messages[-1]["content"]
    assert result == '[a person changed this call before it ran; its arguments were {"a":2}]\n2 it is'
    assert session.thread[4].payload["edited_arguments"] == {"a": 2}
    assert session.thread[4].payload["content"] == "2 it is"


def test_arguments_that_a_person_left_as_they_were_are_no_change() -> None:
    session = open_waiting_session(ASK)
    session.approve("tool00001", arguments={"a": 1})
    session.answer_calls("1")
    assert "edited_arguments" not in session.thread[4].payload
