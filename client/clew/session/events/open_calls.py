"""The tool calls of a session that have no result, and what each waits for: one fold of its events for every face.

Events come one by one. A face that ends its stream at the first call that waits would not tell the others, so it asks
the fold whether each open call has been told.
"""

from __future__ import annotations

from collections.abc import Iterator

from clew.session.events.types import (
    ApprovalRequired,
    EntryCommitted,
    ResultRequired,
    SessionEvent,
    ToolStarted,
)
from clew_workflows.contract.outputs import SessionStatus
from clew_workflows.contract.payloads import ApprovalPayload, AssistantMessage, RunPayload, ToolMessage
from clew_workflows.thread.entries import Entry

WaitingEvent = ApprovalRequired | ResultRequired
"""What tells that a call waits for a person or a program."""


class OpenCalls:
    """Folds the events of a session, or of one of its requests, to the tool calls that have no result."""

    def __init__(self) -> None:
        # In the order of the reply. None: nothing has told yet whether the call waits or runs.
        self._calls: dict[str, WaitingEvent | ToolStarted | None] = {}

    def take(self, event: SessionEvent) -> None:
        """Take the next event."""
        match event:
            case ApprovalRequired() | ResultRequired() | ToolStarted():
                self._calls[event.tool_call_id] = event
            case EntryCommitted(entry=entry):
                self._take_entry(entry)

    def _take_entry(self, entry: Entry) -> None:
        match entry.body if entry.kind in ("ai_message", "approval", "run") else None:
            case AssistantMessage() as reply:
                self._calls = dict.fromkeys(call["id"] for call in reply.tool_calls or ())
            case ToolMessage() as result if not result.late:
                # Its event `tool_finished` comes before: a stream that ended then would lack the result.
                self._calls.pop(result.tool_call_id, None)
            case ApprovalPayload() as decision if decision.tool_call_id in self._calls:
                # It runs, waits for a result, or has one: an event says which.
                self._calls[decision.tool_call_id] = None
            case RunPayload():
                self._calls = {}

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the calls without a result."""
        return iter(self._calls)

    @property
    def approvals(self) -> tuple[ApprovalRequired, ...]:
        """The calls that wait for a person's decision."""
        return tuple(event for event in self._calls.values() if isinstance(event, ApprovalRequired))

    @property
    def results(self) -> tuple[ResultRequired, ...]:
        """The external calls that wait for their results."""
        return tuple(event for event in self._calls.values() if isinstance(event, ResultRequired))

    def still_wait(self, status: SessionStatus) -> bool:
        """Whether the calls that wait by the events wait by a status, too.

        The viewers of a session share what was read of it. That may be older than a decision which a client has just
        sent, and whose entry follows.
        """
        waiting = {call.tool_call_id for call in (*status.pending_approvals, *status.pending_external_calls)}
        return waiting.issuperset(name for name, event in self._calls.items() if isinstance(event, WaitingEvent))

    @property
    def are_told(self) -> bool:
        """Whether events have told of each call that it waits or runs: no other one is about to wait."""
        return all(event is not None for event in self._calls.values())

    @property
    def all_wait(self) -> bool:
        """Whether there are calls, and each waits for a person or a program: nothing goes on without them."""
        return bool(self._calls) and all(isinstance(event, WaitingEvent) for event in self._calls.values())
