"""Make one viewer's events from entries and snapshots. Pure: the viewer does the reads.

Nothing is queued. A viewer that is slow finds a later snapshot and gets all that was added since in one event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from clew.session.events.event_types import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    ResultRequired,
    Retrying,
    SessionEvent,
    StatusChanged,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
)
from clew.session.events.turn import Growing
from clew.session.session_reads import WaitingCall
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.outputs import LiveStatus, PendingCall, ReplyProgress, ToolProgress
from clew_workflows.contract.payloads import ApprovalPayload, AssistantMessage, RunPayload, ToolMessage
from clew_workflows.thread.entries import Entry

# What a hub knows of a session at one moment.


HIBERNATED = "hibernated"
CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Retry:
    """An activity whose last attempt failed.

    Attributes:
        attempt: The number of the attempt that follows.
        error: The type of the error.
        message: A description for people.
        next_at: When the attempt starts at the earliest; None: it has started, or starts now.
    """

    attempt: int
    error: str
    message: str
    next_at: str | None


@dataclass(frozen=True, slots=True)
class Flight:
    """A model call or a tool call in flight, from the server's description of its activity.

    Attributes:
        activity_id: The activity.
        is_model_call: It is a model call.
        progress: The newest heartbeat; None: there is none. It may be of an earlier attempt.
        retry: The failure of the attempt before; None: none has failed.
    """

    activity_id: str
    is_model_call: bool
    progress: ReplyProgress | ToolProgress | None
    retry: Retry | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session at one moment: the thread's length, the status after the newest entry, and the calls in flight.

    Attributes:
        next_seq: The seq after the newest entry.
        status: The status after that entry; None: the session has ended.
        flights: The calls in flight, as the server describes them. They may be of a moment before or after.
        of_subagents: The calls that wait in subagents, as they were a few seconds ago at most.
        ended: `hibernated` or `closed`, if no workflow of the session runs.
    """

    next_seq: int
    status: LiveStatus | None
    flights: tuple[Flight, ...] = ()
    of_subagents: tuple[WaitingCall, ...] = ()
    ended: str | None = None


C = TypeVar("C", bound=PendingCall)


@dataclass(slots=True)
class _ShownReply:
    """The part of a reply that the viewer has.

    Attributes:
        call_id: The model call.
        attempt: The attempt that the viewer has seen.
        text: The text.
        thinking: The reasoning.
    """

    call_id: str
    attempt: int = 1
    text: Growing = field(default_factory=Growing)
    thinking: Growing = field(default_factory=Growing)


class Feed:
    """Makes the events of one viewer.

    Attributes:
        next_seq: The seq of the entry that the viewer needs next.
    """

    def __init__(self, from_seq: int) -> None:
        self.next_seq = from_seq
        self._reply: _ShownReply | None = None
        self._status: tuple[str, str | None] | None = None
        # Calls of the newest reply: all of them, and those that the viewer has been told about.
        self._calls: dict[str, ToolCall] = {}
        self._announced: set[str] = set()
        self._reports: dict[str, ToolProgress] = {}
        self._retries: dict[str, int] = {}
        self._of_subagents: set[tuple[str, str]] = set()

    def take_entry(self, entry: Entry) -> Iterator[SessionEvent]:
        """Make the events of an entry, the entry's own last: a viewer that goes on after it misses none of them."""
        self.next_seq = entry.seq + 1
        match entry.body if entry.kind in ("ai_message", "approval", "run") else None:
            case AssistantMessage() as reply:
                # Otherwise it came with a message: no model call has written it.
                if "call_id" in entry.refs:
                    yield from self._complete_reply(entry, reply)
                self._begin_round(reply)
            case ToolMessage() as result if not result.late:
                yield from self._finish_call(entry, result)
            case ApprovalPayload(decision="deny") as decision:
                # It has not run: it finishes without having started.
                self._announced.add(decision.tool_call_id)
            case ApprovalPayload() as decision:
                self._announced.discard(decision.tool_call_id)
            case RunPayload():
                self._reply, self._retries, self._of_subagents = None, {}, set()
        yield EntryCommitted(**_get_entry_refs(entry), seq=entry.seq, entry=entry)

    def take_snapshot(self, snapshot: Snapshot) -> Iterator[SessionEvent]:
        """Make the events that follow from a snapshot whose entries have all been taken."""
        status = snapshot.status
        if status is None:
            if snapshot.ended and self._status != (snapshot.ended, None):
                self._status = (snapshot.ended, None)
                yield StatusChanged(status=snapshot.ended)
            return
        if self._status != (status.status, status.request_id):
            self._status = (status.status, status.request_id)
            yield StatusChanged(**_get_refs(status), status=status.status)
        yield from self._announce_calls(status)
        yield from self._announce_calls_of_subagents(snapshot.of_subagents, status)
        for flight in snapshot.flights:
            if flight.is_model_call:
                yield from self._take_reply(flight, status)
            elif isinstance(flight.progress, ToolProgress):
                yield from self._take_tool(flight, flight.progress, status)

    def _complete_reply(self, entry: Entry, reply: AssistantMessage) -> Iterator[SessionEvent]:
        call_id = entry.refs["call_id"]
        attempt = reply.recipe.attempt if reply.recipe else 1
        shown, self._reply = self._reply, None
        refs = _get_entry_refs(entry)
        if shown is None or shown.call_id != call_id:
            shown = _ShownReply(call_id, attempt)
        elif shown.attempt != attempt:
            shown = _ShownReply(call_id, attempt)
            yield Restarted(**refs, call_id=call_id, attempt=attempt)
        for made, committed, known in (
            (ThinkingAdded, reply.thinking or "", shown.thinking),
            (TextAdded, reply.text, shown.text),
        ):
            offset, text = known.complete(committed)
            if text or (made is TextAdded and offset < known.end):
                yield made(**refs, call_id=call_id, attempt=attempt, offset=offset, text=text)

    def _begin_round(self, reply: AssistantMessage) -> None:
        self._calls = {call["id"]: call for call in reply.tool_calls or ()}
        self._announced, self._reports = set(), {}

    def _finish_call(self, entry: Entry, result: ToolMessage) -> Iterator[SessionEvent]:
        call_id = result.tool_call_id
        refs = _get_entry_refs(entry)
        call = self._calls.pop(call_id, None)
        if call is not None and call_id not in self._announced:
            arguments = call["arguments"] if result.edited_arguments is None else result.edited_arguments
            yield ToolStarted(**refs, tool_call_id=call_id, name=call["name"], arguments=arguments)
        self._reports.pop(call_id, None)
        name = result.name or (call["name"] if call else None)
        yield ToolFinished(**refs, tool_call_id=call_id, name=name, is_error=result.is_error or result.in_doubt)

    def _announce_calls(self, status: LiveStatus) -> Iterator[SessionEvent]:
        refs = _get_refs(status)
        for call in self._take_new(status.pending_approvals):
            yield ApprovalRequired(**refs, **dict(call))
        for call in self._take_new(status.pending_external_calls):
            yield ResultRequired(**refs, **dict(call))
        for call in self._take_new(status.running_calls):
            yield ToolStarted(**refs, **dict(call))

    def _announce_calls_of_subagents(
        self, calls: tuple[WaitingCall, ...], status: LiveStatus
    ) -> Iterator[SessionEvent]:
        for waiting in calls:
            named = (waiting.session_id, waiting.call.tool_call_id)
            if status.running_calls and named not in self._of_subagents:
                self._of_subagents.add(named)
                call = {name: value for name, value in waiting.call if name in PendingCall.model_fields}
                yield SubagentWaiting(**_get_refs(status), session_id=waiting.session_id, needs=waiting.needs, **call)

    def _take_new(self, calls: tuple[C, ...]) -> Iterator[C]:
        for call in calls:
            if call.tool_call_id not in self._announced:
                self._announced.add(call.tool_call_id)
                yield call

    def _take_tool(self, flight: Flight, progress: ToolProgress, status: LiveStatus) -> Iterator[SessionEvent]:
        call_id = progress.tool_call_id
        if all(call.tool_call_id != call_id for call in status.running_calls):
            return
        refs = _get_refs(progress)
        if retry := self._take_retry(flight):
            yield Retrying(**refs, tool_call_id=call_id, **retry)
        if progress.text is not None and progress != self._reports.get(call_id):
            self._reports[call_id] = progress
            yield ToolProgressed(
                **refs, tool_call_id=call_id, name=progress.name, text=progress.text, fraction=progress.fraction
            )

    def _take_reply(self, flight: Flight, status: LiveStatus) -> Iterator[SessionEvent]:
        progress = flight.progress if isinstance(flight.progress, ReplyProgress) else None
        if status.call_id is None or (progress and progress.call_id != status.call_id):
            return
        refs = _get_refs(status)
        if self._reply is None or self._reply.call_id != status.call_id:
            self._reply = _ShownReply(status.call_id)
        shown = self._reply
        if retry := self._take_retry(flight):
            yield Retrying(**refs, call_id=shown.call_id, **retry)
        if progress is None or progress.attempt < shown.attempt:
            return
        if progress.attempt > shown.attempt:
            shown = self._reply = _ShownReply(shown.call_id, progress.attempt)
            yield Restarted(**refs, call_id=shown.call_id, attempt=shown.attempt)
        ids: dict[str, Any] = {**refs, "call_id": shown.call_id, "attempt": shown.attempt}
        offset, new = shown.thinking.add(progress.thinking_offset, progress.thinking or "")
        if new:
            yield ThinkingAdded(**ids, offset=offset, text=new)
        offset, new = shown.text.add(progress.offset, progress.text)
        if new:
            yield TextAdded(**ids, offset=offset, text=new)

    def _take_retry(self, flight: Flight) -> dict[str, Any] | None:
        """Take a failure that the viewer does not know yet, as the fields of its event."""
        retry = flight.retry
        if retry is None or self._retries.get(flight.activity_id) == retry.attempt:
            return None
        self._retries[flight.activity_id] = retry.attempt
        return asdict(retry)


def _get_refs(of: LiveStatus | ToolProgress) -> dict[str, Any]:
    return {"request_id": of.request_id, "run_id": of.run_id}


def _get_entry_refs(entry: Entry) -> dict[str, Any]:
    return {"request_id": entry.refs.get("request_id"), "run_id": entry.refs.get("run_id")}
