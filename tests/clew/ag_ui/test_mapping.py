"""The events of AG-UI that the events of a request become, without a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ag_ui import core

from clew.ag_ui.mapping import RunEvents, convert_entry, list_new_results
from clew.session.events import (
    EntryCommitted,
    Restarted,
    SessionEvent,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
)
from clew.thread import Entry
from tests.support.ag_ui import apply, check_order

START = core.RunStartedEvent(thread_id="t", run_id="r")


def text(offset: int, content: str, attempt: int = 1) -> TextAdded:
    return TextAdded(call_id="call-1", attempt=attempt, offset=offset, text=content)


def thinking(offset: int, content: str) -> ThinkingAdded:
    return ThinkingAdded(call_id="call-1", attempt=1, offset=offset, text=content)


def commit(kind: str, seq: int = 1, **payload: Any) -> EntryCommitted:
    refs = {"session_id": "s", "request_id": "m1", "call_id": "call-1"}
    entry = Entry.from_json(
        {"seq": seq, "id": f"e{seq}", "kind": kind, "at": "", "payload": payload, "refs": refs, "tokens": 0}
    )
    return EntryCommitted(seq=seq, entry=entry)


def reply(content: str, **fields: Any) -> EntryCommitted:
    return commit("ai_message", context_ref="default", role="assistant", content=content, **fields)


def end(status: str = "completed") -> EntryCommitted:
    return commit("run", event="finished", status=status, termination_reason="final_answer", usage={}, iterations=1)


def encode(events: RunEvents, *taken: SessionEvent) -> list[core.BaseEvent]:
    """Make the events that events of the session lead to."""
    return [made for event in taken for change in events.turn.take(event) for made in events.take(change)]


def run(taken: Iterable[SessionEvent], known: Iterable[core.Message] = ()) -> tuple[list[str], list[core.Message]]:
    """Make the events and apply them; the types of the events, and the messages."""
    known = list(known)
    events = RunEvents(known)
    made: list[Any] = [*encode(events, *taken), *events.close()]
    check_order([START, *made], is_complete=False)
    messages = apply(known, made)
    assert messages == list(events.messages.values())
    return [event.type.value for event in made], messages


def contents(messages: Iterable[core.Message]) -> list[Any]:
    return [message.content for message in messages]


def test_a_text_is_sent_piece_by_piece() -> None:
    """Offsets count what came before; what the entry adds is sent before the end."""
    types, messages = run([text(0, "Good "), text(5, "mor"), reply("Good morning")])
    assert types == ["TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * 3, "TEXT_MESSAGE_END"]
    assert contents(messages) == ["Good morning"]


def test_thinking_comes_before_the_text_and_may_come_again() -> None:
    """Each part is closed before the other continues; both grow."""
    types, messages = run([
        thinking(0, "Hm"), text(0, "A"), thinking(2, "m."), text(1, "B"), reply("AB", thinking="Hmm."),
    ])  # fmt: skip
    assert contents(messages) == ["Hmm.", "AB"]
    assert types.count("REASONING_START") == types.count("REASONING_END") == 2


def test_the_text_of_a_lost_attempt_is_taken_back() -> None:
    """The client replaces its messages; the new text is sent from its beginning."""
    known = [core.UserMessage(id="m1", content="hello")]
    lost: list[SessionEvent] = [text(0, "I think"), Restarted(call_id="call-1", attempt=2)]
    types, messages = run([*lost, text(0, "You", 2), reply("You know")], known)
    assert "MESSAGES_SNAPSHOT" in types
    assert contents(messages) == ["hello", "You know"]


def test_a_text_that_differs_from_the_clients_is_replaced() -> None:
    """It may have the text of an attempt that was lost while it was not connected."""
    known = [core.AssistantMessage(id="call-1", content="I think")]
    assert contents(run([reply("You know")], known)[1]) == ["You know"]
    assert contents(run([reply("I think so")], known)[1]) == ["I think so"]
    assert run([reply("I think")], known)[0] == []


def test_an_older_text_than_the_clients_changes_nothing() -> None:
    """A heartbeat may be older than what another process has sent."""
    known = [core.AssistantMessage(id="call-1", content="Good mor")]
    types, messages = run([text(0, "Good"), text(4, " morning"), reply("Good morning")], known)
    assert types == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    assert contents(messages) == ["Good morning"]


def test_a_part_that_is_missing_comes_with_the_entry() -> None:
    """A slow viewer of a long text gets its end only."""
    _, messages = run([text(0, "One "), text(9, "three "), reply("One two, three four")])
    assert contents(messages) == ["One two, three four"]


def test_a_reply_without_an_entry_is_taken_back() -> None:
    """The session does not have it: a later input must not say that it does."""
    types, messages = run([thinking(0, "Hm"), text(0, "I th"), end("cancelled")])
    assert messages == []
    assert types[-1] == "MESSAGES_SNAPSHOT"


def test_a_call_and_its_result_are_sent_once() -> None:
    """A client that has them gets nothing; without a text the call makes its message."""
    call = {"id": "tool00001", "name": "add", "arguments": {"a": 1}}
    result = commit(
        "ai_message", 2, context_ref="default", role="tool", content="2", tool_call_id="tool00001", name="add"
    )
    types, messages = run([reply("", tool_calls=[call]), result])
    assert types == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert run([reply("", tool_calls=[call]), result], messages)[0] == []


def test_a_result_that_the_client_has_sent_does_not_come_back() -> None:
    """The client has made the message with its own id."""
    known = [core.ToolMessage(id="mine", tool_call_id="tool00001", content="2")]
    result = commit("ai_message", 2, context_ref="default", role="tool", content="2", tool_call_id="tool00001")
    assert run([result], known)[0] == []


def test_what_others_say_is_shown() -> None:
    """A user's message that the client does not have, for example a steer from another page."""
    sent = commit("ai_message", context_ref="default", role="user", content="faster", input_id="s1", source="steer")
    types, messages = run([sent])
    assert types == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    assert messages == [core.UserMessage(id="s1", content="faster")]


def test_progress_is_a_custom_event() -> None:
    """Its value is the session's event."""
    progress = ToolProgressed(tool_call_id="tool00001", name="add", text="half", fraction=0.5)
    (made,) = encode(RunEvents(()), progress)
    assert isinstance(made, core.CustomEvent)
    assert (made.name, made.value) == ("clew.tool_progress", progress.as_dict())


SEARCH = {"tool": "web_search", "input": "tea", "sources": [{"url": "https://a.example"}]}
CITED = {"citations": [{"url": "https://a.example", "title": "A"}]}


def test_a_call_of_the_provider_is_a_tool_call_with_its_result() -> None:
    """It is marked, and nothing of it is sent again to a client that has it."""
    ran = {"tool": "code_execution", "input": "1 + 1", "output": "2"}
    events: list[SessionEvent] = [text(0, "Tea"), reply("Tea", provider_calls=[SEARCH, ran])]
    types, messages = run(events)
    calls = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"] * 2
    assert types[3:] == [*calls, "TOOL_CALL_RESULT", "TOOL_CALL_RESULT"]
    said, *results = messages
    assert isinstance(said, core.AssistantMessage)
    assert [(call.id, call.function.name, call.metadata) for call in said.tool_calls or ()] == [
        ("call-1-provider-1", "web_search", {"clew.run_by": "provider"}),
        ("call-1-provider-2", "code_execution", {"clew.run_by": "provider"}),
    ]
    assert contents(results) == ['{"sources":[{"url":"https://a.example"}]}', '{"output":"2"}']
    assert run(events, messages)[0] == []


def test_a_call_of_the_provider_that_failed_says_so() -> None:
    """Its event is marked as those of other tools are, and its message in a snapshot has the error."""
    failed = reply("Tea", provider_calls=[{"tool": "web_fetch", "error": "not found"}])
    *_, made = encode(RunEvents(()), failed)
    assert isinstance(made, core.ToolCallResultEvent)
    assert (made.content, made.metadata) == ('{"error":"not found"}', {"is_error": True})
    *_, message = convert_entry(failed.entry)
    assert isinstance(message, core.ToolMessage)
    assert message.error == "not found"


def test_citations_are_metadata_of_the_message() -> None:
    """The end of the text has them, also for a client that has the text without them; then they come no more."""
    types, messages = run([text(0, "Tea"), reply("Tea", **CITED)])
    assert types == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    assert [message.metadata for message in messages] == [{"clew.citations": CITED["citations"]}]
    known = [core.AssistantMessage(id="call-1", content="Tea")]
    types, later = run([reply("Tea", **CITED)], known)
    assert (types, later) == (["TEXT_MESSAGE_START", "TEXT_MESSAGE_END"], messages)
    assert run([reply("Tea", **CITED)], messages)[0] == []


def test_results_of_the_provider_are_no_answers_of_the_client() -> None:
    """A client that repeats them submits nothing."""
    _, messages = run([reply("Tea", provider_calls=[SEARCH])])
    sent = core.RunAgentInput(thread_id="t", run_id="r", messages=messages)
    assert list_new_results(sent) == []
