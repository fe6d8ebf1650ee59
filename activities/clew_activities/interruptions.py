"""Sessions that ended and left their archive open: whether something may be in their event history alone."""

from __future__ import annotations

from temporalio import activity
from temporalio.service import RPCError, RPCStatusCode

_UNKNOWN = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT)


async def was_interrupted(session_id: str, execution: str | None) -> bool:
    """Whether the execution that an open archive belongs to may have entries that the archive lacks.

    It has none if it ended before its activity `thaw` did, which makes the archive its own: it was closed while the
    store was slow. An execution that the server does not know may have some.

    Raises:
        RPCError: The server cannot be reached.
    """
    session = activity.client().get_workflow_handle(session_id, run_id=execution)
    thaws: set[int] = set()
    try:
        async for event in session.fetch_history_events():
            if event.activity_task_scheduled_event_attributes.activity_type.name == "thaw":
                thaws.add(event.event_id)
            if event.activity_task_completed_event_attributes.scheduled_event_id in thaws:
                return True
    except RPCError as error:
        if error.status not in _UNKNOWN:
            raise
        return True
    return not thaws
