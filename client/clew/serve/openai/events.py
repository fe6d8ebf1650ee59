"""The events of a response's stream, made from those of its session. Pure.

A stream can be read again from any event on, by any process: the number of an event follows from the thread. So texts
are sent in pieces whose ends follow from the text alone, and the events of a reply are numbered from its beginning.

What has been sent cannot be taken back. When a reply starts over, because its worker has died, nothing is sent until
the new reply is longer than what was sent. If it begins with that, the text goes on. Otherwise its message ends as
`incomplete`, a new message begins, and the response at the end has the new one alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from clew.serve.error_words import TENANT, Reader
from clew.serve.openai import ids, items
from clew.serve.openai.frames import Frame, make_error, make_response, read_time
from clew.session.events import (
    ApprovalRequired,
    Change,
    EntryCommitted,
    LiveTurn,
    ResultRequired,
    SessionEvent,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
    Voided,
    Waits,
)
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import LiveStatus
from clew_workflows.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ErrorPayload,
    RunPayload,
    ToolMessage,
    UserMessage,
)

PIECE_CHARACTERS = 24
"""Most characters of a word that one event has."""
ATTEMPT_NUMBERS = 1_000_000
"""Numbers between the events of two attempts of one reply."""
_PIECE = re.compile(rf"\s*\S{{1,{PIECE_CHARACTERS}}}")

WAITING = "clew:waiting"
"""The type of the event that tells of a call for whose decision or result the response does not end."""
PROGRESS = "clew:tool_progress"
"""The type of the event that tells how far a tool call is that runs. The API has no event for it."""
UNNUMBERED = (WAITING, PROGRESS)
"""Events without a number of their own: a stream that goes on behind a number has them, too."""

Event = dict[str, Any]


def split_text(text: str, start: int, *, is_complete: bool) -> Iterator[str]:
    """Split a text into words, from the beginning of one on. Of a text that grows the last word is left out."""
    while start < len(text):
        match = _PIECE.match(text, start)
        if match is None or (match.end() == len(text) and not is_complete):
            if is_complete:
                yield text[start:]
            return
        yield match[0]
        start = match.end()


@dataclass
class _Growing:
    """A text that is sent while it grows.

    Attributes:
        name: The id of its item.
        index: The place of its item in the stream.
        first: The number of its first event, counted from the beginning of its reply.
        sent: What has been sent.
        is_closed: Its item has ended.
    """

    name: str
    index: int
    first: int
    sent: str = ""
    is_closed: bool = False


@dataclass
class _Reply:
    """A reply that the stream has begun to send.

    Attributes:
        call_id: The model call.
        begins_at: The number of the first event of its first attempt.
        numbered_from: The number of the first event of the attempt whose events were sent last.
        attempt: The attempt that writes it now.
        thinking: The reasoning so far.
        text: The text so far.
        reasoning_item: The item of the reasoning; None: it has not begun.
        message_item: The item of the text; None: it has not begun.
        voided: Number of items that were given up.
        resumes: The attempt has sent nothing yet.
    """

    call_id: str
    begins_at: int
    numbered_from: int
    attempt: int = 1
    thinking: str = ""
    text: str = ""
    reasoning_item: _Growing | None = None
    message_item: _Growing | None = None
    voided: int = 0
    resumes: bool = False


@dataclass
class _OpenCall:
    """A call of the newest reply that has no result.

    Attributes:
        call: The call.
        is_function: It is one of the caller's functions.
        is_new: The reply that has it belongs to this response.
    """

    call: ToolCall
    is_function: bool
    is_new: bool = True


class ResponseEvents:
    """Makes the events of one response.

    Args:
        frame: What the response repeats of its request.
        begun: The reply whose calls the caller has answered to begin this part of a request; None: the response
            begins with its request.
        functions: The names of the caller's functions that had then.
        may_approve: Whether the caller decides about calls that wait for approval. Otherwise the response waits until
            somebody else has decided.
        reader: The reader of errors.

    Attributes:
        frame: What the response repeats of its request.
        is_over: The response has ended.
        response: The response so far.
    """

    def __init__(
        self,
        frame: Frame,
        begun: AssistantMessage | None = None,
        *,
        reader: Reader = TENANT,
        functions: Collection[str] = (),
        may_approve: bool = True,
    ) -> None:
        self.frame = frame
        self._reader = reader
        self.is_over = False
        self.response = make_response(frame, "in_progress")
        self._number = 0
        self._next_index = 0
        self._output: list[dict[str, Any]] = []
        self._usage = Usage()
        self._reply: _Reply | None = None
        self._unjudged: tuple[_Growing, dict[str, Any]] | None = None
        self._turn = LiveTurn()
        self._calls: dict[str, _OpenCall] = {}
        self._earlier = {call["id"]: call for call in _list_calls(begun) if call["name"] not in functions}
        self._may_approve = may_approve

    @property
    def last_number(self) -> int:
        """The number of the newest event; 0: there is none."""
        return max(self._number - 1, 0)

    def describe(self, status: str) -> dict[str, Any]:
        """Describe the response while it has not ended."""
        return make_response(self.frame, status, self._output)

    def begin(self) -> Iterator[Event]:
        """Make the events that every stream begins with."""
        for kind in ("response.created", "response.in_progress"):
            yield self._emit(kind, response=self.response)

    def take(self, event: SessionEvent | LiveStatus) -> Iterator[Event]:
        """Make the events that an event of the session, or its status behind them, leads to."""
        if isinstance(event, EntryCommitted) and items.is_given(event.entry):
            return
        for change in self._turn.take(event):
            if not self.is_over:
                yield from self._encode(change)

    def _encode(self, change: Change) -> Iterator[Event]:
        match change:
            case TextAdded() if not self._turn.text.has_gap:
                reply = self._begin_reply(change.call_id, change.attempt)
                reply.text = self._turn.text.text
                yield from self._close_reasoning(reply)
                yield from self._send(reply, "text", reply.text, is_complete=False)
            case ThinkingAdded() if not self._turn.thinking.has_gap:
                reply = self._begin_reply(change.call_id, change.attempt)
                reply.thinking = self._turn.thinking.text
                # The reasoning behind the beginning of the text is in the response at the end.
                if reply.message_item is None and not _is_closed(reply.reasoning_item):
                    yield from self._send(reply, "thinking", reply.thinking, is_complete=False)
            case Voided():
                self._begin_reply(change.call_id, change.attempt)
            case ApprovalRequired() if self._may_approve:
                pass
            case ResultRequired() if self._is_function(change.tool_call_id):
                pass
            case ApprovalRequired() | ResultRequired() | SubagentWaiting():
                yield self._tell_waiting(change)
            case ToolProgressed():
                yield self._tell_progress(change)
            case Waits() if not change.others_run:
                yield from self._wait(change)
            case EntryCommitted():
                yield from self._take_entry(change)

    def _wait(self, waits: Waits) -> Iterator[Event]:
        """End the response if all that its calls wait for is the caller's."""
        are_own = self._may_approve or not waits.approvals
        if are_own and all(self._is_function(call.tool_call_id) for call in waits.results):
            found = (self._find_call(call.tool_call_id) for call in waits.approvals)
            undecided = [call for call in found if call]
            if undecided or waits.results:
                yield from self._end_waiting(undecided)

    def _find_call(self, call_id: str) -> _OpenCall | None:
        """Find a call that has no result; one of the reply before is opened again."""
        if call := self._earlier.pop(call_id, None):
            self._calls[call_id] = _OpenCall(call, is_function=False, is_new=False)
        return self._calls.get(call_id)

    def _is_function(self, call_id: str) -> bool:
        """Whether a call is one of the caller's functions. Those of other external tools wait for somebody else."""
        known = self._calls.get(call_id)
        return known is not None and known.is_function

    def _tell_waiting(self, event: ApprovalRequired | ResultRequired | SubagentWaiting) -> Event:
        """Tell of a call that waits for somebody else. The event has no number of its own: each reading has it."""
        shown = self._reader.show_event(event)
        if isinstance(shown, SubagentWaiting):
            session_id, needs = shown.session_id, shown.needs
        else:
            session_id = self.frame.name.session_id
            needs = "approval" if isinstance(event, ApprovalRequired) else "result"
        call = {"session_id": session_id, "needs": needs, "tool_call_id": event.tool_call_id}
        asked = {"name": event.name, "arguments": event.arguments}
        return {"type": WAITING, "sequence_number": self.last_number, **call, **asked}

    def _tell_progress(self, event: ToolProgressed) -> Event:
        """Tell how far a call is. The event has no number of its own: another reading may not have it."""
        told = {"tool_call_id": event.tool_call_id, "name": event.name, "text": event.text}
        fraction = {} if event.fraction is None else {"fraction": event.fraction}
        return {"type": PROGRESS, "sequence_number": self.last_number, **told, **fraction}

    # Replies.

    def _begin_reply(self, call_id: str, attempt: int) -> _Reply:
        """Begin a reply, or one of its attempts: the text so far is void."""
        if self._reply is None or self._reply.call_id != call_id:
            self._reply = _Reply(call_id, self._number, self._number)
        reply = self._reply
        if attempt > reply.attempt:
            reply.attempt, reply.thinking, reply.text, reply.resumes = attempt, "", "", True
        return reply

    def _send(self, reply: _Reply, what: str, text: str, *, is_complete: bool) -> Iterator[Event]:
        """Send what is new of a reply's text or reasoning."""
        item = reply.message_item if what == "text" else reply.reasoning_item
        if item and not text.startswith(item.sent):
            if not is_complete and item.sent.startswith(text):
                return  # So far the new attempt writes what was sent.
            yield from self._give_up(reply, item)
            item = None
        start = len(item.sent) if item else 0
        pieces = list(split_text(text, start, is_complete=is_complete))
        if not pieces:
            return
        self._go_on(reply, None)
        if item is None:
            item = yield from self._open(reply, what)
        for piece in pieces:
            item.sent += piece
            if what == "text":
                yield self._emit_of(item, "response.output_text.delta", content_index=0, delta=piece, logprobs=[])
            else:
                yield self._emit_of(item, "response.reasoning_summary_text.delta", summary_index=0, delta=piece)

    def _go_on(self, reply: _Reply, at: int | None) -> None:
        """Number the events of a new attempt: from its beginning, or as those of the attempt before went on."""
        if not reply.resumes:
            return
        sent = self._number - reply.numbered_from if at is None else at
        reply.numbered_from = reply.begins_at + (reply.attempt - 1) * ATTEMPT_NUMBERS
        self._number = reply.numbered_from + sent
        reply.resumes = False

    def _give_up(self, reply: _Reply, item: _Growing) -> Iterator[Event]:
        """End an item whose text the new attempt does not repeat, and the one behind it."""
        is_text = item is reply.message_item
        given_up = [item] if is_text else [item, reply.message_item]
        for one in given_up:
            if one is not None and not one.is_closed:
                one.is_closed = True
                yield self._emit_done(one, _make_void(one, is_text=one is reply.message_item))
        reply.voided += 1
        reply.message_item = None
        if not is_text:
            reply.reasoning_item = None
        self._go_on(reply, item.first)

    def _open(self, reply: _Reply, what: str) -> Generator[Event, None, _Growing]:
        """Open the item of a text or of a reasoning, and return it."""
        kind = ids.MESSAGE if what == "text" else ids.REASONING
        again = (str(reply.attempt),) if reply.voided else ()
        name = ids.encode(kind, self.frame.name.session_id, reply.call_id, *again)
        item = _Growing(name, self._next_index, self._number - reply.numbered_from)
        self._next_index += 1
        if what == "text":
            reply.message_item = item
            made = items.make_message(name, "", status="in_progress")
        else:
            reply.reasoning_item = item
            made = items.make_reasoning(name, "", "in_progress")
        yield self._emit("response.output_item.added", output_index=item.index, item=made)
        if what == "text":
            yield self._emit_of(item, "response.content_part.added", content_index=0, part=items.make_text(""))
        else:
            part = {"type": "summary_text", "text": ""}
            yield self._emit_of(item, "response.reasoning_summary_part.added", summary_index=0, part=part)
        return item

    def _close_reasoning(self, reply: _Reply) -> Iterator[Event]:
        item = reply.reasoning_item
        if reply.thinking and (item is None or not item.is_closed):
            yield from self._send(reply, "thinking", reply.thinking, is_complete=True)
            item = reply.reasoning_item
        if item is None or item.is_closed or (reply.resumes and not reply.thinking):
            return
        item.is_closed = True
        text = item.sent
        yield self._emit_of(item, "response.reasoning_summary_text.done", summary_index=0, text=text)
        part = {"type": "summary_text", "text": text}
        yield self._emit_of(item, "response.reasoning_summary_part.done", summary_index=0, part=part)
        yield self._emit_done(item, items.make_reasoning(item.name, text))

    # Entries.

    def _take_entry(self, committed: EntryCommitted) -> Iterator[Event]:
        entry = committed.entry
        match committed.body:
            case AssistantMessage() as reply:
                yield from self._judge(is_void=False)
                yield from self._take_reply(committed.call_id, reply)
            case UserMessage() as sent:
                yield from self._judge(is_void=sent.source == items.REPAIR)
            case ToolMessage(late=False) as result:
                yield from self._take_result(result)
            case ApprovalPayload() as decision if self._may_approve:
                yield from self._take_decision(decision)
            case ErrorPayload(refused_text=str(text)):
                yield from self._take_refused(entry.refs.get("call_id", ""), text)
            case RunPayload() as outcome if entry.refs.get("request_id") == self.frame.name.request_id:
                yield from self._judge(is_void=False)
                yield from self._end(outcome, read_time(entry.at))

    def _take_reply(self, call_id: str, committed: AssistantMessage) -> Iterator[Event]:
        reply = self._begin_reply(call_id, committed.recipe.attempt if committed.recipe else 1)
        if committed.recipe:
            self._usage = self._usage.plus(committed.recipe.call_usage)
        reply.thinking, reply.text = committed.thinking or "", committed.text
        yield from self._close_reasoning(reply)
        if reply.thinking and reply.reasoning_item:
            self._output.append(items.make_reasoning(reply.reasoning_item.name, reply.thinking))
        if reply.text:
            yield from self._send(reply, "text", reply.text, is_complete=True)
        elif reply.message_item and not reply.message_item.is_closed:
            yield from self._give_up(reply, reply.message_item)
        self._go_on(reply, None)
        if item := reply.message_item:
            yield from self._finish_message(item, committed)
        for number, provided in enumerate(committed.provider_calls or (), 1):
            if made := items.make_provider_call(self.frame.name.session_id, call_id, number, provided):
                yield from self._add(made)
        self._reply = None
        functions = self.frame.function_names
        calls = list(committed.tool_calls or ())[: None if self.frame.takes_calls else 1]
        self._calls = {call["id"]: _OpenCall(call, call["name"] in functions) for call in calls}
        for opened in self._calls.values():
            if opened.is_function:
                yield from self._add_function_call(opened.call)

    def _take_refused(self, call_id: str, text: str) -> Iterator[Event]:
        """Take the text so far of a reply that the provider has refused to complete."""
        known = self._reply if self._reply and self._reply.call_id == call_id else None
        reply = self._begin_reply(call_id, known.attempt if known else 1)
        reply.text = text
        yield from self._close_reasoning(reply)
        yield from self._send(reply, "text", text, is_complete=True)
        self._go_on(reply, None)
        if item := reply.message_item:
            made = items.make_message(item.name, item.sent, status="incomplete", phase="final_answer")
            self._unjudged = (item, made | {"content": [items.make_text(item.sent)]})
            yield from self._judge(is_void=False)
        self._reply = None

    def _finish_message(self, item: _Growing, committed: AssistantMessage) -> Iterator[Event]:
        """End a message; one that must meet a schema ends when the session has judged it."""
        status = "incomplete" if committed.interrupted else "completed"
        is_final = not committed.tool_calls and not committed.is_paused
        made = items.make_message(
            item.name, item.sent, status=status, phase="final_answer" if is_final else "commentary"
        )
        made["content"] = [items.make_text(item.sent, committed.citations or ())]
        self._unjudged = (item, made)
        if self.frame.output_schema is None or not is_final:
            yield from self._judge(is_void=False)

    def _judge(self, *, is_void: bool) -> Iterator[Event]:
        """End the message that waits for its end. A void one is not the answer: the session had it corrected."""
        if self._unjudged is None:
            return
        (item, made), self._unjudged = self._unjudged, None
        item.is_closed = True
        if is_void:
            yield self._emit_done(item, _make_void(item, is_text=True))
            return
        (part,) = made["content"]
        for number, annotation in enumerate(part["annotations"]):
            yield self._emit_of(
                item,
                "response.output_text.annotation.added",
                content_index=0,
                annotation_index=number,
                annotation=annotation,
            )
        yield self._emit_of(item, "response.output_text.done", content_index=0, text=item.sent, logprobs=[])
        yield self._emit_of(item, "response.content_part.done", content_index=0, part=part)
        yield self._emit_done(item, made)
        self._output.append(made)

    def _add_function_call(self, call: ToolCall) -> Iterator[Event]:
        made = items.make_function_call(self.frame.name.session_id, call)
        yield from self._add(
            made,
            {**made, "arguments": "", "status": "in_progress"},
            ("response.function_call_arguments.delta", {"delta": made["arguments"]}),
            ("response.function_call_arguments.done", {"name": made["name"], "arguments": made["arguments"]}),
        )

    def _take_decision(self, decision: ApprovalPayload) -> Iterator[Event]:
        # A call of the reply before runs, or is denied: the caller has decided to begin this part.
        known = self._find_call(decision.tool_call_id)
        if known is not None and known.is_new:
            # It waited, and somebody has decided. What follows belongs to the next response.
            yield from self._end_waiting([call for call in self._calls.values() if not call.is_function])

    def _take_result(self, result: ToolMessage) -> Iterator[Event]:
        opened = self._calls.get(result.tool_call_id)
        if opened is None:
            return
        if opened.is_function:
            # Its result has come. What follows belongs to the next response.
            yield from self._end_waiting()
            return
        del self._calls[result.tool_call_id]
        made = items.make_server_call(self.frame.name.session_id, opened.call, result, was_approved=not opened.is_new)
        ending = "completed" if made["error"] is None else "failed"
        yield from self._add(
            made,
            {**made, "arguments": "", "output": None, "error": None, "status": "in_progress"},
            ("response.mcp_call.in_progress", {}),
            ("response.mcp_call_arguments.delta", {"delta": made["arguments"]}),
            ("response.mcp_call_arguments.done", {"arguments": made["arguments"]}),
            (f"response.mcp_call.{ending}", {}),
        )

    # The end.

    def _end_waiting(self, undecided: Iterable[_OpenCall] = ()) -> Iterator[Event]:
        """End the response: it goes on in the next one, with the results and decisions that the caller sends."""
        for opened in undecided:
            yield from self._add(items.make_approval_request(self.frame.name.session_id, opened.call))
        yield from self._finish("completed")

    def _end(self, outcome: RunPayload, at: float) -> Iterator[Event]:
        match outcome.status, outcome.termination_reason:
            case "completed", "max_iterations":
                yield from self._finish("incomplete", incomplete="max_messages")
            case "completed", _ if self._turn.stop_reason == "length":
                yield from self._finish("incomplete", incomplete="max_output_tokens")
            case "completed", _:
                yield from self._finish("completed", completed_at=int(at))
            case "cancelled", _:
                yield from self._finish("cancelled")
            case _, "content_refused":
                yield from self._add_refusal(outcome)
                yield from self._finish("incomplete", incomplete="content_filter")
            case _, reason:
                yield from self._finish("failed", error=make_error(self._reader.show_error(outcome.error), reason))

    def _add_refusal(self, outcome: RunPayload) -> Iterator[Event]:
        """Send why the provider has refused, as a message of its own: the text so far stays as it is."""
        yield from self._drop_reply()
        shown = self._reader.show_error(outcome.error)
        text = shown.message if shown else ""
        name = ids.encode(ids.MESSAGE, self.frame.name.session_id, f"refusal-{outcome.iterations}")
        made = items.make_refusal(name, text)
        part, place = made["content"][0], {"content_index": 0}
        yield from self._add(
            made,
            {**made, "content": [], "status": "in_progress"},
            ("response.content_part.added", {**place, "part": {**part, "refusal": ""}}),
            ("response.refusal.delta", {**place, "delta": text}),
            ("response.refusal.done", {**place, "refusal": text}),
            ("response.content_part.done", {**place, "part": part}),
        )

    def _finish(self, status: str, **fields: Any) -> Iterator[Event]:
        yield from self._drop_reply()
        self.is_over = True
        self.response = make_response(self.frame, status, self._output, usage=self._usage, **fields)
        # The API has no event for a response that was cancelled.
        kind = "incomplete" if status == "cancelled" else status
        yield self._emit(f"response.{kind}", response=self.response)

    def _drop_reply(self) -> Iterator[Event]:
        """End the items of a reply that has not been committed."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        for item in (reply.reasoning_item, reply.message_item):
            if item and not item.is_closed:
                item.is_closed = True
                yield self._emit_done(item, _make_void(item, is_text=item is reply.message_item))

    # Events.

    def _add(
        self, made: dict[str, Any], begun: dict[str, Any] | None = None, *between: tuple[str, dict[str, Any]]
    ) -> Iterator[Event]:
        """Send a whole item, and add it to the output."""
        index, self._next_index = self._next_index, self._next_index + 1
        yield self._emit("response.output_item.added", output_index=index, item=made if begun is None else begun)
        for kind, fields in between:
            yield self._emit(kind, item_id=made["id"], output_index=index, **fields)
        yield self._emit("response.output_item.done", output_index=index, item=made)
        self._output.append(made)

    def _emit_of(self, item: _Growing, kind: str, **fields: Any) -> Event:
        return self._emit(kind, item_id=item.name, output_index=item.index, **fields)

    def _emit_done(self, item: _Growing, made: dict[str, Any]) -> Event:
        return self._emit("response.output_item.done", output_index=item.index, item=made)

    def _emit(self, kind: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def _list_calls(reply: AssistantMessage | None) -> list[ToolCall]:
    return list(reply.tool_calls or ()) if reply else []


def _is_closed(item: _Growing | None) -> bool:
    return item is not None and item.is_closed


def _make_void(item: _Growing, *, is_text: bool) -> dict[str, Any]:
    """Make an item that is not a part of the response."""
    if not is_text:
        return items.make_reasoning(item.name, item.sent, "incomplete")
    made = items.make_message(item.name, item.sent, status="incomplete", phase="commentary")
    return made | {"content": [items.make_text(item.sent)]}
