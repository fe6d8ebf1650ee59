"""External calls: a round waits for results from outside, each for the time of its tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clew.contract import HibernateInput, ToolResultInput
from clew.errors import AlreadyAnswered, Busy, CallEnded, InvalidInput, TooLarge, UnknownToolCall
from clew_workflows.contract.outputs import ToolResultReceipt
from clew_workflows.protocol import ArchiveRef, RequestedTool
from clew_workflows.session import commands, decisions, outside, runs, views
from tests.support.images import DATA_URL
from tests.support.session_harness import SessionHarness, carry_over
from tests.support.threads import assert_valid

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
