"""Calls whose round waits for people or for results from outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clew.contract import HibernateInput, ToolResultInput
from clew.errors import (
    AlreadyAnswered,
    AlreadyResolved,
    Busy,
    CallEnded,
    InvalidInput,
    TooLarge,
    UnknownApproval,
    UnknownToolCall,
)
from clew_workflows.contract.outputs import ToolResultReceipt
from clew_workflows.protocol import ArchiveRef, RequestedTool
from clew_workflows.session import commands, decisions, outside, runs, views
from tests.support.images import DATA_URL
from tests.support.session_harness import SessionHarness, carry_over
from tests.support.threads import assert_valid

# Approvals: a round waits for people, for as long as they take.


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


# External calls: a round waits for results from outside, each for the time of its tool.


TOOLS = ("add", "order_outside", "ask_outside", "look_remote")


def waiting(*tools: RequestedTool | str, **config: Any) -> SessionHarness:
    """A session whose model has called tools. External calls expire after 60 seconds."""
    session = SessionHarness(tools=TOOLS, **config)
    session.ask(request_id="r")
    session.reply("", *tools)
    return session


def submit(session: SessionHarness, tool_call_id: str, content: Any = "done", **fields: Any) -> ToolResultReceipt:
    receipt = session.do(ToolResultInput(tool_call_id=tool_call_id, content=content, **fields))
    assert isinstance(receipt, ToolResultReceipt)
    return receipt


def expire(session: SessionHarness, time: float) -> None:
    session.time = time
    session.apply(outside.expire_calls(session.state, session.now).then(runs.proceed, session.now))


def results(session: SessionHarness) -> dict[str, str]:
    """The texts of the tool results, by call, in the order of the thread."""
    tools = [entry.payload for entry in session.thread if entry.payload.get("role") == "tool"]
    return {tool["tool_call_id"]: tool["content"] for tool in tools}


def test_an_external_call_waits_for_its_result() -> None:
    """Nothing is carried out meanwhile. The status shows the call, with its arguments and the end of its time."""
    session = waiting(RequestedTool(name="order_outside", arguments={"a": 1}))
    assert (session.state.phase, session.effect) == ("awaiting_external", None)
    assert views.answer_status(session.state, session.thread)["pending_external_calls"] == [
        {
            "tool_call_id": "tool00001",
            "name": "order_outside",
            "arguments": {"a": 1},
            "expires_at": "1970-01-01T00:01:00.000Z",
        }
    ]
    receipt = submit(session, "tool00001", "sent")
    assert session.thread[receipt.seq].payload["content"] == "sent"
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


@pytest.mark.parametrize(
    ("content", "text"),
    [("a text", "a text"), ({"b": [1, "é"]}, '{"b":[1,"é"]}'), (3, "3"), (None, "null"), ("", ""), (False, "false")],
)
def test_a_result_is_a_text_or_any_json_value(content: Any, text: str) -> None:
    """The model reads a text as it is, and other values as JSON."""
    session = waiting("order_outside")
    submit(session, "tool00001", content, is_error=True)
    assert results(session) == {"tool00001": text}
    assert session.thread.last_seq == 3
    assert session.thread[3].payload["is_error"] is True


@pytest.mark.parametrize("content", [DATA_URL, {"type": "image_url", "image_url": {"url": DATA_URL}}])
def test_a_result_with_an_image_is_refused(content: Any) -> None:
    """The call still waits, for a text."""
    session = waiting("order_outside")
    with pytest.raises(InvalidInput, match="data URL"):
        submit(session, "tool00001", content)
    submit(session, "tool00001", "a cat")
    assert results(session) == {"tool00001": "a cat"}


def test_a_round_mixes_all_kinds_of_calls() -> None:
    """Activities run and external calls wait, those that need it once approved. Results are committed on arrival."""
    session = waiting("add", "order_outside", "ask_outside", "look_remote")
    assert session.state.phase == "awaiting_approval"
    assert [call.tool_call_id for call in outside.list_pending_results(session.state)] == ["tool00002"]
    with pytest.raises(UnknownToolCall):
        submit(session, "tool00003")
    session.approve("tool00003")
    assert [call.name for call, _ in session.round.calls] == ["add", "look_remote"]
    assert [call.tool_call_id for call in outside.list_pending_results(session.state)] == ["tool00002", "tool00003"]
    submit(session, "tool00003", "three")
    session.answer_call("tool00004", "four")
    session.answer_call("tool00001", "one")
    assert (session.state.phase, session.effect) == ("awaiting_external", None)
    submit(session, "tool00002", "two")
    assert results(session) == {"tool00003": "three", "tool00004": "four", "tool00001": "one", "tool00002": "two"}
    assert session.call.iteration == 2
    assert_valid(session.build_context(session.call).messages)


def test_a_result_from_outside_may_come_before_the_approval_of_another_call() -> None:
    """The entry of the result says who has submitted it."""
    session = waiting("order_outside", "ask_outside")
    receipt = submit(session, "tool00001", "one", by="erp")
    assert session.thread[receipt.seq].payload["by"] == "erp"
    assert session.state.phase == "awaiting_approval"
    session.approve("tool00002")
    assert (session.state.phase, session.effect) == ("awaiting_external", None)
    submit(session, "tool00002", "two")
    assert session.call.iteration == 2


def test_the_activities_may_return_last() -> None:
    """The model is called after the last result, whichever it is."""
    session = waiting("add", "order_outside")
    submit(session, "tool00002")
    assert session.state.phase == "awaiting_tools"
    session.answer_call("tool00001", "1")
    assert session.call.iteration == 2


def test_a_call_ends_at_its_timeout() -> None:
    """The model reads that. Calls with more time still wait, and a result that comes later is refused."""
    session = waiting("order_outside", "add")
    session.time = 30
    assert outside.find_next_expiry(session.state) == 60
    expire(session, 59)
    assert results(session) == {}
    expire(session, 60)
    assert results(session) == {
        "tool00001": "error: tool 'order_outside' timed out: no result came within 60 seconds"
    }
    assert outside.find_next_expiry(session.state) is None
    with pytest.raises(CallEnded):
        submit(session, "tool00001")
    session.answer_call("tool00002", "2")
    assert session.call.iteration == 2


def test_all_calls_of_a_round_may_time_out_at_once() -> None:
    """The model is called once."""
    session = waiting("order_outside", "order_outside")
    expire(session, 61)
    assert len(results(session)) == 2
    assert session.call.iteration == 2


def test_a_result_is_accepted_once() -> None:
    """A repetition is refused, during the run and after it. Calls that do not wait have words of their own."""
    session = waiting("order_outside", "order_outside", "add")
    submit(session, "tool00001")
    for _ in range(2):
        with pytest.raises(AlreadyAnswered):
            submit(session, "tool00001")
        with pytest.raises(UnknownToolCall):
            submit(session, "tool00004")
        with pytest.raises(UnknownToolCall):
            submit(session, "what?")
        if session.state.run:
            with pytest.raises(UnknownToolCall):
                submit(session, "tool00003")
            session.cancel()
    with pytest.raises(CallEnded):
        submit(session, "tool00002")


def test_a_result_has_the_sessions_limit() -> None:
    """In bytes of the text that the model would read. The call still waits."""
    session = waiting("order_outside", limits={"max_tool_result_bytes": 256})
    for content in ("é" * 129, ["x" * 253]):
        with pytest.raises(TooLarge, match="at most 256"):
            submit(session, "tool00001", content)
    submit(session, "tool00001", "é" * 128)
    assert session.call.iteration == 2


def test_the_requests_clock_stands_still_while_only_external_calls_are_open() -> None:
    """It goes on while an activity runs beside them."""
    session = waiting("order_outside", "add", request_timeout_seconds=100)
    session.time = 40
    session.answer_call("tool00002", "2")
    session.time = 5000
    submit(session, "tool00001")
    assert session.state.run
    assert session.state.run.clock.deadline == 100 + 4960
    session.time = 5059
    session.reply("", "add")
    assert session.state.phase == "awaiting_tools"
    session.time = 5060
    session.answer_calls("4")
    assert session.find_ending("r") == ("failed", "timeout")


def test_the_clock_stops_once_for_several_calls() -> None:
    """A result that leaves others open does not start it."""
    session = waiting("order_outside", "order_outside", request_timeout_seconds=100)
    session.time = 20
    submit(session, "tool00001")
    session.time = 50
    submit(session, "tool00002")
    assert session.state.run
    assert session.state.run.clock.deadline == 150


def test_a_request_without_time_does_not_wait_for_external_calls() -> None:
    """Its activities used the time up: it fails, and its external calls are not answered."""
    session = waiting("order_outside", "add", request_timeout_seconds=100)
    session.time = 100
    session.answer_call("tool00002", "2")
    assert session.find_ending("r") == ("failed", "timeout")
    assert "not answered" in results(session)["tool00001"]


@pytest.mark.parametrize("ending", ["cancel", "close", "interrupt", "recover"])
def test_the_end_of_the_run_ends_its_external_calls(ending: str) -> None:
    """Each gets a result: it was not answered. It is not in doubt, and a late result is refused."""
    session = waiting("order_outside", "ask_outside")
    session.approve("tool00002")
    match ending:
        case "cancel":
            session.cancel()
        case "close":
            session.close()
        case "interrupt":
            session.ask("now", on_busy="interrupt")
        case _:
            session.apply(decisions.recover(session.state, session.now))
    payloads = [entry.payload for entry in session.thread if entry.payload.get("role") == "tool"]
    assert [payload["content"].partition(" (")[0] for payload in payloads] == ["[not answered: the run ended"] * 2
    assert not any(payload.get("in_doubt") for payload in payloads)
    assert session.state.late_calls == ()
    assert views.answer_status(session.state, session.thread)["pending_external_calls"] == []
    if ending != "close":
        with pytest.raises(CallEnded):
            submit(session, "tool00001")


def test_a_call_that_awaits_its_approval_was_not_run() -> None:
    """It had not begun to wait for its result."""
    session = waiting("ask_outside")
    session.cancel()
    assert results(session)["tool00001"].startswith("[not run")


def test_waiting_calls_survive_a_rollover() -> None:
    """With their times, and the stopped clock of the request."""
    session = waiting("order_outside", "order_outside", request_timeout_seconds=100)
    submit(session, "tool00001")
    session.time = 10
    resumed = carry_over(session)
    assert resumed.effect is None
    session.state, session.thread = resumed.state, resumed.thread
    assert outside.find_next_expiry(session.state) == 60
    with pytest.raises(AlreadyAnswered):
        submit(session, "tool00001")
    session.time = 50
    submit(session, "tool00002")
    assert session.state.run
    assert session.state.run.clock.deadline == 150


def test_a_session_with_a_waiting_call_does_not_hibernate() -> None:
    """It is busy, as with a waiting approval."""
    session = waiting("order_outside")
    state = replace(session.state, archive=ArchiveRef(execution="x", family="s-1"))
    with pytest.raises(Busy):
        commands.decide(state, session.thread, HibernateInput(), None, session.now)


@pytest.mark.parametrize("name", ["order_outside", "look_remote"])
def test_arguments_are_validated_before_a_call_begins(name: str) -> None:
    """The model reads what is wrong, and nothing waits or runs."""
    session = waiting(RequestedTool(name=name, arguments={"a": "x"}))
    assert results(session)["tool00001"].startswith("error: invalid arguments: a: it is not of the form")
    assert session.call.iteration == 2
