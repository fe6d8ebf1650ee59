"""The events of a response's stream, made from those of its session. Pure.

A stream can be read again from any event on, by any process: the number of an event follows from the thread. So texts
are sent in pieces whose ends follow from the text alone, and the events of a reply are numbered from its beginning.

What has been sent cannot be taken back. When a reply starts over, because its worker has died, nothing is sent until
the new reply is longer than what was sent. If it begins with that, the text goes on. Otherwise its message ends as
`incomplete`, a new message begins, and the response at the end has the new one alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from clew.serve.openai import items, names
from clew.serve.openai.frames import Frame, make_error, make_response, read_time
from clew.serve.tenants import TENANT, Reader
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    ResultRequired,
    SessionEvent,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
)
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ErrorPayload,
    RunPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread.entries import Entry

PIECE_CHARACTERS = 24
"""Most characters of a word that one event has."""
ATTEMPT_NUMBERS = 1_000_000
"""Numbers between the events of two attempts of one reply."""
_PIECE = re.compile(rf"\s*\S{{1,{PIECE_CHARACTERS}}}")

WAITING = "clew:waiting"
"""The type of the event that tells of a call for whose decision or result the response does not end."""

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
        waits: It waits for the caller.
    """

    call: ToolCall
    is_function: bool
    is_new: bool = True
    waits: bool = False


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
        self._calls: dict[str, _OpenCall] = {}
        self._earlier = {call["id"]: call for call in _list_calls(begun) if call["name"] not in functions}
        self._may_approve = may_approve
        self._stop_reason: str | None = None

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

    def take(self, event: SessionEvent) -> Iterator[Event]:
        """Make the events that an event of the session leads to."""
        if self.is_over:
            return
        match event:
            case ThinkingAdded() | TextAdded():
                yield from self._grow(event)
            case Restarted():
                self._begin_reply(event.call_id, event.attempt)
            case ApprovalRequired() if self._may_approve:
                yield from self.wait_for(approvals=[event.tool_call_id])
            case ResultRequired() if self._find_function(event.tool_call_id):
                yield from self.wait_for(results=[event.tool_call_id])
            case ApprovalRequired() | ResultRequired() | SubagentWaiting():
                yield self._tell_waiting(event)
            case EntryCommitted(entry=entry):
                yield from self._take_entry(entry)

    def wait_for(self, *, approvals: Collection[str] = (), results: Collection[str] = ()) -> Iterator[Event]:
        """Note which calls wait for decisions and for results. The response ends when all its open calls wait."""
        for call_id in approvals if self._may_approve else ():
            if opened := self._find_call(call_id):
                opened.waits = True
        for call_id in results:
            if known := self._find_function(call_id):
                known.waits = True
        if self._calls and all(opened.waits for opened in self._calls.values()):
            yield from self._end_waiting()

    def _find_call(self, call_id: str) -> _OpenCall | None:
        """Find a call that has no result; one of the reply before is opened again."""
        if call := self._earlier.pop(call_id, None):
            self._calls[call_id] = _OpenCall(call, is_function=False, is_new=False)
        return self._calls.get(call_id)

    def _find_function(self, call_id: str) -> _OpenCall | None:
        """Find a call of one of the caller's functions. Calls of other external tools wait for somebody else."""
        known = self._calls.get(call_id)
        return known if known and known.is_function else None

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

    # Replies.

    def _grow(self, added: TextAdded | ThinkingAdded) -> Iterator[Event]:
        reply = self._begin_reply(added.call_id, added.attempt)
        known = reply.thinking if isinstance(added, ThinkingAdded) else reply.text
        if added.offset > len(known):
            return  # A part is missing: the entry has it.
        text = known[: added.offset] + added.text
        if isinstance(added, ThinkingAdded):
            reply.thinking = text
            # The reasoning behind the beginning of the text is in the response at the end.
            if reply.message_item is None and not _is_closed(reply.reasoning_item):
                yield from self._send(reply, "thinking", text, is_complete=False)
        else:
            reply.text = text
            yield from self._close_reasoning(reply)
            yield from self._send(reply, "text", text, is_complete=False)

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
        kind = names.MESSAGE if what == "text" else names.REASONING
        again = (str(reply.attempt),) if reply.voided else ()
        name = names.encode(kind, self.frame.name.session_id, reply.call_id, *again)
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

    def _take_entry(self, entry: Entry) -> Iterator[Event]:
        match entry.body if entry.kind in ("ai_message", "approval", "error", "run") else None:
            case AssistantMessage() as reply if not items.is_given(entry):
                yield from self._judge(is_void=False)
                yield from self._take_reply(entry, reply)
            case UserMessage() as sent:
                yield from self._judge(is_void=sent.source == items.REPAIR)
            case ToolMessage() as result if not result.late:
                yield from self._take_result(result)
            case ApprovalPayload() as decision if self._may_approve:
                yield from self._take_decision(decision)
            case ErrorPayload(refused_text=str(text)):
                yield from self._take_refused(entry.refs.get("call_id", ""), text)
            case RunPayload() as outcome if entry.refs.get("request_id") == self.frame.name.request_id:
                yield from self._judge(is_void=False)
                yield from self._end(outcome, read_time(entry.at))

    def _take_reply(self, entry: Entry, committed: AssistantMessage) -> Iterator[Event]:
        call_id = entry.refs.get("call_id", "")
        reply = self._begin_reply(call_id, committed.recipe.attempt if committed.recipe else 1)
        if committed.recipe:
            self._usage = self._usage.plus(committed.recipe.call_usage)
            self._stop_reason = committed.recipe.stop_reason
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
        if decision.tool_call_id in self._earlier:
            # The caller has decided to begin this part: the call runs, or is denied.
            self._find_call(decision.tool_call_id)
        elif decision.tool_call_id in self._calls and self._calls[decision.tool_call_id].is_new:
            # It waited, and somebody has decided. What follows belongs to the next response.
            for opened in self._calls.values():
                opened.waits = True
            yield from self._end_waiting()
        elif decided := self._calls.get(decision.tool_call_id):
            decided.waits = False

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
        yield from self.wait_for()

    # The end.

    def _end_waiting(self) -> Iterator[Event]:
        """End the response: it goes on in the next one, with the results and decisions that the caller sends."""
        for opened in self._calls.values():
            if not opened.is_function and opened.waits:
                yield from self._add(items.make_approval_request(self.frame.name.session_id, opened.call))
        yield from self._finish("completed")

    def _end(self, outcome: RunPayload, at: float) -> Iterator[Event]:
        match outcome.status, outcome.termination_reason:
            case "completed", "max_iterations":
                yield from self._finish("incomplete", incomplete="max_messages")
            case "completed", _ if self._stop_reason == "length":
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
        name = names.encode(names.MESSAGE, self.frame.name.session_id, f"refusal-{outcome.iterations}")
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
