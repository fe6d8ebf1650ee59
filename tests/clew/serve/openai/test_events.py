"""The events of a response, from events of a session: texts, restarts, calls and ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from clew.serve.openai.chunks import Chunks, ReplyRestarted
from clew.serve.openai.events import ATTEMPT_NUMBERS, WAITING, Event, ResponseEvents, split_text
from clew.serve.openai.frames import Frame, make_error
from clew.serve.openai.ids import ResponseName
from clew.serve.openai.refusals import RequestEnded
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    ResultRequired,
    SessionEvent,
    TextAdded,
    ThinkingAdded,
)
from clew.session.events.feed import Feed
from clew_workflows.contract.outcomes import OutcomeError
from clew_workflows.contract.outputs import LiveStatus
from clew_workflows.contract.payloads import AssistantMessage
from clew_workflows.thread.entries import Entry

REQUEST = "r1"
FUNCTIONS = ({"name": "look", "description": "", "parameters": {"type": "object"}},)
SCHEMA = {"type": "object"}
_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def make_frame(**fields: Any) -> Frame:
    return Frame(ResponseName("chat", REQUEST), 1, "scripted:m", functions=FUNCTIONS, **fields)


def make_entry(seq: int, kind: str, payload: dict[str, Any], **refs: Any) -> Entry:
    row = {
        "seq": seq,
        "id": f"e{seq}",
        "kind": kind,
        "at": "2026-11-25T12:00:00.000Z",
        "payload": payload,
        "tokens": 1,
        "refs": {"request_id": REQUEST, "run_id": "run-1", **refs},
    }
    return Entry.from_json(row)


def make_reply(seq: int, text: str, call_id: str = "call-1", *, attempt: int = 1, **fields: Any) -> Entry:
    recipe = {
        "context_ref": "default",
        "basis_seq": 0,
        "model": "scripted:m",
        "model_options": {},
        "policy_hash": "p",
        "digest": "d",
        "input_tokens": 3,
        "usage": {"input_tokens": 3, "output_tokens": 2},
        "attempt": attempt,
        "stop_reason": "stop",
    }
    payload = {"context_ref": "default", "role": "assistant", "content": text, "recipe": recipe, **fields}
    return make_entry(seq, "ai_message", payload, call_id=call_id)


def make_calls(*names: str) -> list[dict[str, Any]]:
    return [{"id": f"t{number}", "name": name, "arguments": {"a": number}} for number, name in enumerate(names)]


def make_result(seq: int, tool_call_id: str, name: str, text: str = "42", **fields: Any) -> Entry:
    payload = {
        "context_ref": "default",
        "role": "tool",
        "content": text,
        "tool_call_id": tool_call_id,
        "name": name,
        **fields,
    }
    return make_entry(seq, "ai_message", payload, tool_call_id=tool_call_id)


def make_run(seq: int, status: str = "completed", reason: str = "final_answer", **fields: Any) -> Entry:
    payload = {"event": "finished", "status": status, "termination_reason": reason, "usage": {}, "iterations": 1}
    return make_entry(seq, "run", payload | fields)


def add_text(text: str, offset: int = 0, *, attempt: int = 1, call_id: str = "call-1") -> TextAdded:
    return TextAdded(request_id=REQUEST, run_id="run-1", call_id=call_id, attempt=attempt, offset=offset, text=text)


def add_thinking(text: str, offset: int = 0, *, attempt: int = 1) -> ThinkingAdded:
    return ThinkingAdded(
        request_id=REQUEST, run_id="run-1", call_id="call-1", attempt=attempt, offset=offset, text=text
    )


def commit(entry: Entry) -> EntryCommitted:
    return EntryCommitted(request_id=REQUEST, run_id="run-1", seq=entry.seq, entry=entry)


def wait(*, approval: str | None = None, result: str | None = None, runs: str | None = None) -> LiveStatus:
    """Make the status of a session whose calls wait for an approval or for a result, or run."""

    def list_calls(name: str | None, **fields: Any) -> list[dict[str, Any]]:
        return [{"tool_call_id": name, "name": "tool", "arguments": {}, **fields}] if name else []

    fields = {
        "pending_approvals": list_calls(approval),
        "pending_external_calls": list_calls(result, expires_at=""),
        "running_calls": list_calls(runs),
    }
    return LiveStatus.model_validate({"rev": 9, "status": "awaiting_tools", "request_id": REQUEST, **fields})


def run(events: ResponseEvents, taken: Iterable[SessionEvent | LiveStatus]) -> list[Event]:
    """Make the events, and check that each is of the API, with a number that rises, or tells of a call that waits."""
    made = [*events.begin(), *itertools.chain.from_iterable(map(events.take, taken))]
    numbered = [event for event in made if event["type"] != WAITING]
    for event in numbered:
        _events.validate_python(event)
    numbers = [event["sequence_number"] for event in numbered]
    assert numbers == sorted(set(numbers))
    check_indexes(made)
    return made


def check_indexes(made: Iterable[Event]) -> None:
    """Check that items begin one after the other, and that each that has begun ends once."""
    begun = [event["output_index"] for event in made if event["type"] == "response.output_item.added"]
    assert begun == list(range(len(begun)))


def replay(events: ResponseEvents, entries: Iterable[Entry]) -> list[Event]:
    """Make the events of a stream that is read again from the thread."""
    feed = Feed(0)
    return run(events, itertools.chain.from_iterable(map(feed.take_entry, entries)))


def join_deltas(made: Iterable[Event], index: int | None = None) -> str:
    return "".join(
        event["delta"]
        for event in made
        if event["type"] == "response.output_text.delta" and index in (None, event["output_index"])
    )


@given(st.text(st.sampled_from("ab \n\u3042"), max_size=120), st.lists(st.integers(0, 120), max_size=6))
def test_pieces_of_a_text_do_not_depend_on_how_it_grew(text: str, cuts: list[int]) -> None:
    """The pieces of a text that grows are those of the complete text, in the same places."""
    sent: list[str] = []
    for cut in sorted(cuts):
        sent += split_text(text[:cut], len("".join(sent)), is_complete=False)
    sent += split_text(text, len("".join(sent)), is_complete=True)
    assert sent == list(split_text(text, 0, is_complete=True))
    assert "".join(sent) == text


def test_a_stream_that_is_read_again_has_the_same_events() -> None:
    """A stream from the thread has the numbers and the events of the one that followed the reply as it grew."""
    reply = make_reply(1, "one two three four", thinking="let me see")
    grown: list[SessionEvent] = [add_thinking("let me"), add_thinking(" see", 6)]
    grown += [add_text("one t"), add_text("wo thr", 5), add_text("ee four", 11), commit(reply), commit(make_run(2))]
    live = run(ResponseEvents(make_frame()), grown)
    assert replay(ResponseEvents(make_frame()), [reply, make_run(2)]) == live
    assert join_deltas(live) == "one two three four"
    assert [item["type"] for item in live[-1]["response"]["output"]] == ["reasoning", "message"]


def test_a_reply_that_starts_over_alike_goes_on() -> None:
    """A new attempt that repeats what was sent adds to the same message: no text is there twice."""
    reply = make_reply(1, "one two three four five", attempt=2)
    taken: list[SessionEvent] = [
        add_text("one two three f"),
        Restarted(request_id=REQUEST, run_id="run-1", call_id="call-1", attempt=2),
        add_text("one t", attempt=2),
        add_text("wo three four fi", 5, attempt=2),
        commit(reply),
        commit(make_run(2)),
    ]
    events = ResponseEvents(make_frame())
    made = run(events, taken)
    assert join_deltas(made) == "one two three four five"
    assert [item["status"] for item in events.response["output"]] == ["completed"]
    again = replay(ResponseEvents(make_frame()), [reply, make_run(2)])
    known = {event["sequence_number"]: event for event in again}
    resumed = [event for event in made if event["sequence_number"] > ATTEMPT_NUMBERS]
    assert resumed
    assert all(known[event["sequence_number"]] == event for event in resumed)


def test_a_reply_that_starts_over_with_another_text_begins_a_new_message() -> None:
    """What was sent cannot be taken back: its message ends as incomplete, and the response has the new one alone."""
    taken: list[SessionEvent] = [
        add_text("one two three "),
        Restarted(request_id=REQUEST, run_id="run-1", call_id="call-1", attempt=2),
        add_text("one four ", attempt=2),
        commit(make_reply(1, "one four five", attempt=2)),
        commit(make_run(2)),
    ]
    events = ResponseEvents(make_frame())
    made = run(events, taken)
    assert join_deltas(made, 0) == "one two three"
    assert join_deltas(made, 1) == "one four five"
    ended = [event["item"] for event in made if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in ended] == ["incomplete", "completed"]
    assert ended[0]["id"] != ended[1]["id"]
    assert events.response["output"] == [ended[1]]


def test_a_completion_cannot_take_a_text_back() -> None:
    """A stream of Chat Completions has one text: it fails when the reply has started over with another."""
    events, chunks = ResponseEvents(make_frame()), Chunks(make_frame(), include_usage=False)
    made: Iterator[Event] = itertools.chain.from_iterable(
        events.take(taken)
        for taken in (
            add_text("one two three "),
            Restarted(request_id=REQUEST, run_id="run-1", call_id="call-1", attempt=2),
            add_text("other words ", attempt=2),
        )
    )
    with pytest.raises(ReplyRestarted):
        list(itertools.chain.from_iterable(map(chunks.take, made)))


def test_an_answer_that_was_corrected_is_no_part_of_the_response() -> None:
    """Of answers that must meet a schema the response has the one that does."""
    repair = make_entry(
        2, "ai_message", {"context_ref": "default", "role": "user", "content": "no", "source": "repair"}
    )
    entries = [make_reply(1, "no JSON"), repair, make_reply(3, "{}", "call-2"), make_run(4)]
    events = ResponseEvents(make_frame(output_schema=SCHEMA))
    made = replay(events, entries)
    (message,) = events.response["output"]
    assert message["content"][0]["text"] == "{}"
    voided = next(event["item"] for event in made if event["type"] == "response.output_item.done")
    assert (voided["status"], voided["phase"]) == ("incomplete", "commentary")
    assert sum(event["type"] == "response.output_text.done" for event in made) == 1


@pytest.mark.parametrize(
    ("word", "code", "status"),
    [
        ("context_overflow", "invalid_prompt", 400),
        ("rate_limited", "rate_limit_exceeded", 429),
        ("x", "server_error", 500),
    ],
)
def test_a_failure_by_what_was_sent_is_no_failure_of_the_server(word: str, code: str, status: int) -> None:
    """The code of a failed response says whose it is; of a completion it is the status, too."""
    made = make_error(OutcomeError(type=word, message="so"), "error")
    assert (made["code"], made["message"]) == (code, f"{word}: so")
    assert RequestEnded(made["code"], made["message"]).status == status


def test_calls_of_functions_end_a_response() -> None:
    """A response ends when all its open calls wait for the caller, and not before the session's own have returned."""
    events = ResponseEvents(make_frame())
    reply = make_reply(1, "", tool_calls=make_calls("look", "other"))
    waits = ResultRequired(
        request_id=REQUEST, run_id="run-1", tool_call_id="t0", name="look", arguments={}, expires_at="x"
    )
    run(events, [commit(reply), waits, wait(result="t0", runs="t1")])
    assert not events.is_over
    list(events.take(commit(make_result(2, "t1", "other"))))
    made = list(events.take(wait(result="t0")))
    assert events.is_over
    assert made[-1]["type"] == "response.completed"
    kinds = [item["type"] for item in events.response["output"]]
    assert kinds == ["function_call", "mcp_call"]


def test_a_response_that_was_answered_ends_at_the_answer() -> None:
    """Read again after its results have come, a response ends with its calls, and the next one begins behind them."""
    reply = make_reply(1, "I look.", tool_calls=make_calls("look"))
    entries = [reply, make_result(2, "t0", "look"), make_reply(3, "It is 42.", "call-2"), make_run(4)]
    first = ResponseEvents(make_frame())
    replay(first, entries)
    assert [item["type"] for item in first.response["output"]] == ["message", "function_call"]
    second = ResponseEvents(make_frame(), reply.read(AssistantMessage))
    replay(second, entries[1:])
    assert [item["content"][0]["text"] for item in second.response["output"]] == ["It is 42."]


def test_an_approval_ends_a_response_and_its_call_is_in_the_next() -> None:
    """A call that waits for approval is a request for it; the next response has the call and its result."""
    reply = make_reply(1, "", tool_calls=make_calls("pay"))
    asks = ApprovalRequired(request_id=REQUEST, run_id="run-1", tool_call_id="t0", name="pay", arguments={})
    first = ResponseEvents(make_frame())
    run(first, [commit(reply), asks, wait(approval="t0")])
    assert [item["type"] for item in first.response["output"]] == ["mcp_approval_request"]
    decision = make_entry(2, "approval", {"tool_call_id": "t0", "decision": "approve"}, tool_call_id="t0")
    rest = [decision, make_result(3, "t0", "pay", "paid"), make_reply(4, "Done.", "call-2"), make_run(5)]
    second = ResponseEvents(make_frame(), reply.read(AssistantMessage))
    replay(second, rest)
    call, message = second.response["output"]
    assert (call["type"], call["output"]) == ("mcp_call", "paid")
    assert call["approval_request_id"] == first.response["output"][0]["id"]
    assert message["content"][0]["text"] == "Done."
    waiting = ResponseEvents(make_frame(), may_approve=False)
    told = run(waiting, [commit(reply), asks, wait(approval="t0")])[-1]
    assert (told["type"], told["session_id"], told["tool_call_id"]) == (WAITING, "chat", "t0")
    assert not waiting.is_over


def test_a_call_that_waits_for_the_decision_about_another_does_not_hold_the_response() -> None:
    """Of two approvals one is given: its call runs after the other decision, for which the response ends."""
    reply = make_reply(1, "", tool_calls=make_calls("pay", "pay"))
    decision = make_entry(2, "approval", {"tool_call_id": "t0", "decision": "approve"}, tool_call_id="t0")
    events = ResponseEvents(make_frame(), reply.read(AssistantMessage))
    run(events, [commit(decision), wait(approval="t1")])
    assert events.is_over
    assert [item["type"] for item in events.response["output"]] == ["mcp_approval_request"]


@pytest.mark.parametrize(
    ("ended", "status", "kind"),
    [
        (make_run(2), "completed", "response.completed"),
        (make_run(2, "failed", "internal", error={"type": "internal", "message": "no"}), "failed", "response.failed"),
        (make_run(2, "cancelled", "cancelled"), "cancelled", "response.incomplete"),
        (make_run(2, reason="max_iterations"), "incomplete", "response.incomplete"),
    ],
)
def test_each_outcome_has_its_event(ended: Entry, status: str, kind: str) -> None:
    """Each outcome of a request is a status of its response, and a last event."""
    events = ResponseEvents(make_frame())
    made = run(events, [add_text("half "), commit(ended)])
    assert (events.response["status"], made[-1]["type"]) == (status, kind)
