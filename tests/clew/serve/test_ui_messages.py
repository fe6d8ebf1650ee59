"""The chunks of the AI SDK's UI message stream, made of the events of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from clew.contract import ApprovalInput, ToolResultInput
from clew.errors import InvalidInput, UnsupportedContent
from clew.serve.ui_messages import (
    Chunk,
    ReplyChunks,
    UiMessage,
    apply_chunks,
    convert_thread,
    name_reply,
    read_message,
)
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    SessionEvent,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
)
from clew_workflows.contract.payloads import UserMessage
from clew_workflows.protocol import RequestedTool
from clew_workflows.thread.entries import Entry
from tests.support.images import DATA_URL
from tests.support.session_harness import SessionHarness


def list_events(session: SessionHarness, from_seq: int = 1) -> Iterator[EntryCommitted]:
    """List the events of a thread's entries."""
    for entry in session.thread.slice(from_seq, session.thread.last_seq):
        yield EntryCommitted(seq=entry.seq, entry=entry)


def make_chunks(chunks: ReplyChunks, events: Iterable[SessionEvent]) -> list[Chunk]:
    return [chunk for event in events for change in chunks.turn.take(event) for chunk in chunks.take(change)]


def list_types(made: Iterable[Chunk]) -> list[str]:
    return [chunk["type"] for chunk in made]


def add_text(offset: int, text: str, call_id: str = "call-1") -> TextAdded:
    return TextAdded(call_id=call_id, attempt=1, offset=offset, text=text)


def show(made: Iterable[Chunk]) -> list[dict[str, Any]]:
    """Show the parts that a client has after some chunks."""
    message: dict[str, Any] = {"parts": []}
    apply_chunks(message, made)
    return list(message["parts"])


def ask(*calls: RequestedTool | str, **config: Any) -> SessionHarness:
    """A session whose model has called tools."""
    session = SessionHarness(tools=("add", "ask_add", "order_outside"), **config)
    session.ask(request_id="r")
    session.reply("I look.", *calls)
    return session


def test_a_text_that_grows_is_sent_once() -> None:
    """Each part as it comes, the rest with the entry, and then the end of the message with its usage."""
    session = SessionHarness()
    session.ask(request_id="r")
    session.reply("Good morning")
    growing: list[SessionEvent] = [add_text(0, "Go"), add_text(2, "od"), add_text(2, "od")]
    made = make_chunks(ReplyChunks("r"), [*growing, *list_events(session)])
    assert made[:4] == [
        {"type": "start-step"},
        {"type": "text-start", "id": "call-1-text"},
        {"type": "text-delta", "id": "call-1-text", "delta": "Go"},
        {"type": "text-delta", "id": "call-1-text", "delta": "od"},
    ]
    assert made[4:6] == [
        {"type": "text-delta", "id": "call-1-text", "delta": " morning"},
        {"type": "text-end", "id": "call-1-text"},
    ]
    assert list_types(made[6:]) == ["finish-step", "finish"]
    assert made[-1]["finishReason"] == "stop"
    assert made[-1]["messageMetadata"]["requestId"] == "r"


@pytest.mark.parametrize(
    "replaced",
    [
        [Restarted(call_id="call-1", attempt=2)],
        [add_text(1, "ood morning")],
        [],
    ],
    ids=["a new attempt", "another text", "the entry's text"],
)
def test_a_text_that_is_void_is_taken_back(replaced: list[SessionEvent]) -> None:
    """The client ends with the text of the entry, and with the reasoning once."""
    session = SessionHarness()
    session.ask(request_id="r")
    session.reply("Good morning", thinking="hm")
    before: list[SessionEvent] = [ThinkingAdded(call_id="call-1", attempt=1, offset=0, text="hm"), add_text(0, "Gut")]
    made = make_chunks(ReplyChunks("r"), [*before, *replaced, *list_events(session)])
    assert list_types(made).count("reset-step") == 1
    after = made[list_types(made).index("reset-step") :]
    texts = {
        kind: "".join(c["delta"] for c in after if c["type"] == f"{kind}-delta") for kind in ("text", "reasoning")
    }
    assert texts == {"text": "Good morning", "reasoning": "hm"}


def test_a_tool_call_and_its_result() -> None:
    """A JSON object is the output itself, any other text is the text; a failure is an error."""
    session = ask(RequestedTool(name="add", arguments={"a": 1}), "add", "add")
    session.answer_call("tool00001", '{"sum": 3}')
    session.answer_call("tool00002", "3")
    session.answer_call("tool00003", "[not a list")
    session.reply("Done")
    made = make_chunks(ReplyChunks("r"), list_events(session))
    called = {"type": "tool-input-available", "toolCallId": "tool00001", "toolName": "add", "input": {"a": 1}}
    assert called in made
    outputs = [chunk["output"] for chunk in made if chunk["type"] == "tool-output-available"]
    assert outputs == [{"sum": 3}, "3", "[not a list"]
    assert list_types(made).count("start-step") == list_types(made).count("finish-step") == 2


def test_wrong_arguments_are_an_error_of_the_call() -> None:
    """The client sees why the tool did not run."""
    session = ask("fly")
    (failed,) = [c for c in make_chunks(ReplyChunks("r"), list_events(session)) if c["type"] == "tool-output-error"]
    assert "unknown tool" in failed["errorText"]


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_an_approval_is_replayed_with_its_decision(decision: str) -> None:
    """A client that comes later sees the request, the decision, and what followed."""
    session = ask("ask_add")
    session.approve("tool00001", decision=decision, reason="because")
    if decision == "approve":
        session.answer_call("tool00001", "3")
    made = make_chunks(ReplyChunks("r"), list_events(session))
    assert {"type": "tool-approval-request", "approvalId": "tool00001", "toolCallId": "tool00001"} in made
    (part,) = [part for part in show(made) if part["type"] == "tool-ask_add"]
    assert part["approval"] == {"id": "tool00001", "approved": decision == "approve", "reason": "because"}
    assert part["state"] == ("output-available" if decision == "approve" else "output-denied")


def test_an_approval_is_requested_once() -> None:
    """After the call that it is about, whenever the event comes."""
    session = ask("ask_add")
    wanted = ApprovalRequired(tool_call_id="tool00001", name="ask_add", arguments={})
    made = make_chunks(ReplyChunks("r"), [wanted, *list_events(session), wanted, wanted])
    assert list_types(made)[-2:] == ["tool-input-available", "tool-approval-request"]


def continue_message(*parts: dict[str, Any]) -> UiMessage:
    """Make the assistant's message of request `r`, as a client sends it."""
    return UiMessage(id=name_reply("r"), role="assistant", parts=[{"type": "text", "text": "I look."}, *parts])


def test_a_message_that_goes_on_gets_what_it_lacks() -> None:
    """Neither the reply that the client has, nor the decision and the output that it has sent."""
    session = ask("ask_add", "order_outside", "add")
    session.answer_call("tool00003", "5")
    known = continue_message(
        {
            "type": "tool-ask_add",
            "toolCallId": "tool00001",
            "state": "approval-responded",
            "approval": {"id": "tool00001", "approved": True},
        },
        {"type": "tool-order_outside", "toolCallId": "tool00002", "state": "output-available", "output": {"a": 1}},
        {"type": "tool-add", "toolCallId": "tool00003", "state": "input-available"},
    )
    session.approve("tool00001")
    session.do(ToolResultInput(tool_call_id="tool00002", content={"a": 1}))
    session.answer_call("tool00001", "3")
    session.reply("Done")
    chunks = ReplyChunks("r", known)
    assert chunks.start() == {"type": "start", "messageId": name_reply("r")}
    made = make_chunks(chunks, [add_text(0, "I look."), *list_events(session)])
    assert [(c["toolCallId"], c["output"]) for c in made if c["type"] == "tool-output-available"] == [
        ("tool00003", "5"),
        ("tool00001", "3"),
    ]
    assert not {"tool-input-available", "tool-approval-request", "tool-approval-response"} & {*list_types(made)}
    assert [c["delta"] for c in made if c["type"] == "text-delta"] == ["Done"]


def test_a_steer_is_a_part_of_the_message() -> None:
    """In its place between the steps."""
    session = ask("add")
    session.steer("rather this", input_id="s-1", at="step")
    session.answer_call("tool00001", "3")
    session.reply("Done")
    made = make_chunks(ReplyChunks("r"), list_events(session))
    steered = {"type": "steering-message", "id": "s-1", "parts": [{"type": "text", "text": "rather this"}]}
    assert [chunk for chunk in made if chunk["type"] == "steering-message"] == [steered]


def test_the_end_of_a_request_is_the_end_of_the_message() -> None:
    """A failure is an error, a cancellation an abort."""
    failed, cancelled = SessionHarness(), SessionHarness()
    failed.ask(request_id="r")
    failed.fail()
    assert list_types(make_chunks(ReplyChunks("r"), list_events(failed)))[-2:] == ["error", "finish"]
    cancelled.ask(request_id="r")
    cancelled.cancel()
    assert list_types(make_chunks(ReplyChunks("r"), list_events(cancelled)))[-2:] == ["abort", "finish"]


def test_progress_is_no_part_of_the_message() -> None:
    """It is told while it lasts."""
    progressed = ToolProgressed(tool_call_id="tool00001", name="add", text="half", fraction=0.5)
    (made,) = make_chunks(ReplyChunks("r"), [progressed])
    assert (made["type"], made["transient"]) == ("data-tool-progress", True)
    assert made["data"] == {"toolCallId": "tool00001", "text": "half", "fraction": 0.5}


async def test_a_thread_has_the_messages_that_a_client_would_have() -> None:
    """One of the assistant for each request; a call that waits for approval says so."""
    session = ask("add")
    session.answer_call("tool00001", "3")
    session.reply("Done")
    session.ask("again", request_id="r2")
    session.reply("", "ask_add")

    async def read() -> AsyncIterator[Entry]:
        for entry in session.thread:
            yield entry

    pending: Any = list(session.state.run.tool_calls) if session.state.run else []
    messages = await convert_thread(read(), pending)
    assert [(message["id"], message["role"]) for message in messages] == [
        ("r", "user"),
        ("r-reply", "assistant"),
        ("r2", "user"),
        ("r2-reply", "assistant"),
    ]
    assert [part["type"] for part in messages[1]["parts"]] == ["step-start", "text", "tool-add", "step-start", "text"]
    assert messages[3]["parts"][-1]["state"] == "approval-requested"
    assert messages[1]["metadata"]["requestId"] == "r"


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_the_messages_of_a_thread_that_begins_within_a_run(decision: Any) -> None:
    """Of a long thread the newest entries are read: what they have of earlier calls is left out."""
    session = ask("ask_add", "add", "order_outside")
    session.do(ApprovalInput(tool_call_id="tool00001", decision=decision, reason="so"))
    session.answer_call("tool00002", "3")
    session.do(ToolResultInput(tool_call_id="tool00003", content="lost", is_error=True))
    if decision == "approve":
        session.answer_call("tool00001", "4")
    session.reply("Done")
    entries = list(session.thread)
    (first,) = (entry for entry in entries if isinstance(entry.body, UserMessage))
    for start in range(first.seq + 1, len(entries)):
        # As if it had been steered in right before them.
        newest = [first, *entries[start:]]

        async def read(newest: list[Entry] = newest) -> AsyncIterator[Entry]:
            for entry in newest:
                yield entry

        for message in await convert_thread(read()):
            states = {part["state"] for part in message["parts"] if "toolCallId" in part}
            assert states <= {"output-available", "output-error", "output-denied"}


@pytest.mark.parametrize(
    "call",
    [{"toolCallId": "a\0b"}, {"toolCallId": 3}, {"toolCallId": "c", "state": []}, {"toolCallId": "c", "approval": 1}],
)
def test_a_call_that_is_not_valid_is_refused(call: dict[str, Any]) -> None:
    """A message of the assistant has calls of the form that the AI SDK sends."""
    with pytest.raises(InvalidInput):
        ReplyChunks("r", UiMessage(id="m", role="assistant", parts=[call]))


def test_what_a_user_sends_is_read() -> None:
    """Texts are one text; a file's bytes come in its address."""
    text = UiMessage(id="m", role="user", parts=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert read_message(text) == "a\nb"

    file = {"type": "file", "mediaType": "image/png", "url": DATA_URL, "filename": "a.png"}
    content: Any = read_message(UiMessage(id="m", role="user", parts=[{"type": "text", "text": "see"}, file]))
    assert content[0] == "see"
    assert type(content[1]).__name__ == "Image"


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ({"type": "hologram", "text": "hm"}, InvalidInput),
        ({"type": "text", "text": 3}, InvalidInput),
        ({"type": "file", "mediaType": "image/png"}, InvalidInput),
        ({"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,?"}, InvalidInput),
        ({"type": "file", "mediaType": "application/pdf", "url": "https://example.com/a.pdf"}, UnsupportedContent),
    ],
)
def test_other_parts_of_a_user_are_refused(part: dict[str, Any], error: type[Exception]) -> None:
    """Nothing is fetched, and nothing is left out silently."""
    with pytest.raises(error):
        read_message(UiMessage(id="m", role="user", parts=[part]))
