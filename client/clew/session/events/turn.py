"""One fold of a session's events for every face: what a reply has grown to, what is void of it, and which calls wait.

A face encodes changes. They are the session's events, with `Voided` in the place of restarts and of texts that
replace others, and `Waits` once calls wait for people or programs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from clew.session.events.event_types import EntryCommitted, Restarted, SessionEvent, TextAdded, ThinkingAdded
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.outputs import LiveStatus, PendingCall, PendingExternalCall
from clew_workflows.contract.payloads import AssistantMessage, RunPayload, ToolMessage


@dataclass(frozen=True, slots=True)
class Voided:
    """A reply starts over, or goes on from an earlier character: only these texts of it stay.

    Attributes:
        call_id: The model call.
        attempt: The attempt that writes the reply.
        thinking: What stays of the reasoning.
        text: What stays of the text.
        starts_over: A new attempt has begun.
    """

    call_id: str
    attempt: int
    thinking: str = ""
    text: str = ""
    starts_over: bool = False


@dataclass(frozen=True, slots=True)
class Waits:
    """Tool calls wait for people or programs. All that has happened before has been told.

    Attributes:
        approvals: The calls that wait for a person's decision.
        results: The external calls that wait for their results.
        others_run: Other calls of the reply run meanwhile. Those that wait for the decisions about others do not.
    """

    approvals: tuple[PendingCall, ...] = ()
    results: tuple[PendingExternalCall, ...] = ()
    others_run: bool = False


Change = SessionEvent | Voided | Waits
"""What faces encode. A text's offset is where it goes on: before the end only behind a part that was missing."""


@dataclass(slots=True)
class Growing:
    """A text, or the reasoning, of the reply that a model writes.

    Attributes:
        text: It from its beginning on, without a gap.
        end: Where the newest part ends.
        has_gap: A part between the two is missing. It comes with the entry at the latest.
    """

    text: str = ""
    end: int = 0
    has_gap: bool = False

    def add(self, offset: int, text: str) -> tuple[int, str]:
        """Add a part of it, which may be old; returns the offset and the text of the new characters."""
        start = max(self.end, offset)
        if new := text[start - offset :]:
            self.has_gap = self.has_gap or start > self.end
            self.end = start + len(new)
            if not self.has_gap:
                self.text += new
        return start, new

    def complete(self, text: str) -> tuple[int, str]:
        """Find what is not known of the complete text: its offset, and the characters."""
        kept = len(self.text) if text.startswith(self.text) else 0
        return kept, text[kept:]


class LiveTurn:
    """Folds the events of a session, or of one of its requests.

    Attributes:
        thinking: The reasoning of the newest reply.
        text: The text of the newest reply.
        calls: The tool calls of the newest reply that have no result.
        stop_reason: Why the provider has ended the newest reply.
    """

    def __init__(self) -> None:
        self.thinking, self.text = Growing(), Growing()
        self.calls: dict[str, ToolCall] = {}
        self.stop_reason: str | None = None
        self._call_id = ""
        self._attempt = 1
        self._waits: Waits | None = None

    def take(self, event: SessionEvent | LiveStatus) -> Sequence[Change]:
        """Take the next event, or the session's status after all events so far."""
        match event:
            case TextAdded() | ThinkingAdded():
                begun = () if event.call_id == self._call_id else self._begin(event.call_id, event.attempt)
                if event.attempt > self._attempt:
                    begun = self._begin(event.call_id, event.attempt)
                grown = self.text if event.type == "text" else self.thinking
                if event.offset != grown.end:
                    return (*begun, *self._jump(grown, event))
                grown.end += len(event.text)
                if not grown.has_gap:
                    grown.text += event.text
                return (*begun, event) if begun else (event,)
            case Restarted():
                return self._begin(event.call_id, event.attempt)
            case EntryCommitted():
                return (*self._take_entry(event), event)
            case LiveStatus():
                return self._take_status(event)
        return (event,)

    async def fold(self, events: AsyncGenerator[SessionEvent | LiveStatus, None]) -> AsyncGenerator[Change, None]:
        """Fold events as they come."""
        async with aclosing(events):
            async for event in events:
                for change in self.take(event):
                    yield change

    def _begin(self, call_id: str, attempt: int) -> tuple[Voided, ...]:
        """Begin a reply, or another attempt of it, for which the texts so far are void."""
        if call_id == self._call_id and attempt <= self._attempt:
            return ()
        is_void = call_id == self._call_id and bool(self.thinking.end or self.text.end)
        self._call_id, self._attempt, self.thinking, self.text = call_id, attempt, Growing(), Growing()
        return (Voided(call_id, attempt, starts_over=True),) if is_void else ()

    def _jump(self, grown: Growing, event: TextAdded | ThinkingAdded) -> Iterator[Change]:
        """Go on elsewhere than at the end."""
        if event.offset > len(grown.text):
            grown.end, grown.has_gap = event.offset + len(event.text), True
            yield event
        else:
            refs = {"request_id": event.request_id, "run_id": event.run_id}
            yield from self._change(type(event), grown.text[: event.offset] + event.text, refs, event.offset)

    def _change(
        self, kind: type[TextAdded | ThinkingAdded], text: str, refs: dict[str, Any], kept: int = 0
    ) -> Iterator[Change]:
        """Make the text, or the reasoning, another one. Its first `kept` characters are as before."""
        grown = self.text if kind is TextAdded else self.thinking
        if text.startswith(grown.text):
            kept = len(grown.text)
        else:
            grown.text = text[:kept]
            yield Voided(self._call_id, self._attempt, self.thinking.text, self.text.text)
        grown.text, grown.end, grown.has_gap = text, len(text), False
        if kept < len(text):
            yield kind(**refs, call_id=self._call_id, attempt=self._attempt, offset=kept, text=text[kept:])

    def _take_entry(self, event: EntryCommitted) -> Iterator[Change]:
        match event.body:
            case AssistantMessage() as reply:
                refs = {"request_id": event.request_id, "run_id": event.run_id}
                yield from self._begin(event.call_id, reply.recipe.attempt if reply.recipe else 1)
                yield from self._change(ThinkingAdded, reply.thinking or "", refs)
                yield from self._change(TextAdded, reply.text, refs)
                self._call_id, self.stop_reason = "", reply.recipe.stop_reason if reply.recipe else None
                self.calls = {call["id"]: call for call in reply.tool_calls or ()}
            case ToolMessage(late=False) as result:
                self.calls.pop(result.tool_call_id, None)
            case RunPayload():
                self._call_id, self.calls = "", {}

    def _take_status(self, status: LiveStatus) -> Sequence[Change]:
        before, self._waits = self._waits, None
        approvals, results = status.pending_approvals, status.pending_external_calls
        # While hooks check calls of the reply, these may be about to wait.
        if (approvals or results) and status.status != "checking":
            self._waits = Waits(approvals, results, bool(status.running_calls))
        return () if self._waits is None or self._waits == before else (self._waits,)
