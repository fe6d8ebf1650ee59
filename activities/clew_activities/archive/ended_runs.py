"""What the server remembers of the ended workflow runs of sessions: the store is not believed against it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from clew_activities.archive.archive_errors import ObjectDamaged, ThreadMismatch
from clew_activities.archive.formats import Head
from clew_workflows.contract import WORKFLOW_TYPE
from clew_workflows.contract.names import DELETED_WORKFLOW
from clew_workflows.protocol import WrittenArchive

OLD_HEAD_SECONDS = 6.0
"""Seconds for which the store may show an older head of a session that has ended."""
OLD_HEAD_PAUSE_SECONDS = 0.25
"""Seconds between two reads of such a head."""
MAX_STARTS = 100
"""Most workflow runs of a session that are looked at, from the newest back: runs that could not start say nothing."""

_UNKNOWN = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT)


async def find_ended_run(session_id: str, execution: str) -> str:
    """Find the newest workflow run of a session that has archived it at its end, by the server's list; empty: none.

    The list is a moment late. Runs from before a deletion count no more.

    Args:
        session_id: The session.
        execution: The execution that starts.
    """
    # A session id contains no quotes. Some of Temporal's databases do not tell the case of an id.
    query = (
        f'WorkflowId = "{session_id}" AND WorkflowType IN ("{WORKFLOW_TYPE}", "{DELETED_WORKFLOW}") AND '
        "ExecutionStatus IN ('Completed', 'Canceled')"
    )
    async for run in activity.client().list_workflows(query):
        if run.id == session_id and run.raw_info.first_run_id != execution:
            return run.run_id if run.workflow_type == WORKFLOW_TYPE else ""
    return ""


async def describe_run(session_id: str, run_id: str | None = None) -> WorkflowExecutionDescription | None:
    """Describe a workflow run of a session, the newest one without `run_id`; None: the server knows none.

    Raises:
        RPCError: The server cannot be reached.
    """
    try:
        described = await activity.client().get_workflow_handle(session_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status not in _UNKNOWN:
            raise
        return None
    return described if described.workflow_type == WORKFLOW_TYPE else None


async def find_archived_upto(session_id: str, described: WorkflowExecutionDescription | None) -> int:
    """Find the seq up to which the archive of a session must reach, as the server remembers; -1: it knows none.

    A run that did not come to start, and one that ended before it had read its archive, say nothing: the run before
    them counts. So does nothing of runs before one that an operator's command has started.

    Args:
        session_id: The session.
        described: Its newest workflow run that has ended; None: the server knows none.

    Raises:
        RPCError: The server cannot be reached.
    """
    for _ in range(MAX_STARTS):
        if described is None:
            return -1
        run = activity.client().get_workflow_handle(session_id, run_id=described.run_id)
        try:
            last_seq = await _find_last_seq(run, described.status)
            if last_seq >= 0:
                return last_seq
            first = activity.client().get_workflow_handle(session_id, run_id=described.raw_info.first_run_id)
            run_id = await _read_before(first)
            if run_id is None:
                run_id = await find_ended_run(session_id, described.raw_info.first_run_id)
        except RPCError as error:
            if error.status not in _UNKNOWN:
                raise
            return -1
        described = await describe_run(session_id, run_id) if run_id else None
    return -1


async def _find_last_seq(run: WorkflowHandle[Any, Any], status: WorkflowExecutionStatus | None) -> int:
    """Find the seq of the last entry that a workflow run has archived at its end; -1: it has archived none then."""
    if status is WorkflowExecutionStatus.COMPLETED:
        result: dict[str, int] = await run.result(follow_runs=False)
        return result["last_seq"]
    if status is not WorkflowExecutionStatus.CANCELED:
        return -1
    # A cancelled workflow has no result. The last archive that it has written reaches to its end.
    archives: set[int] = set()
    written = None
    async for event in run.fetch_history_events():
        if event.activity_task_scheduled_event_attributes.activity_type.name == "archive":
            archives.add(event.event_id)
        if event.activity_task_completed_event_attributes.scheduled_event_id in archives:
            written = event.activity_task_completed_event_attributes.result.payloads
    if not written:
        return -1
    (archive,) = await activity.client().data_converter.decode(written, [WrittenArchive])
    upto: int = archive.archive.upto
    return upto


async def _read_before(run: WorkflowHandle[Any, Any]) -> str | None:
    """Read which ended run a session was started after; empty: after none; None: its caller has not said."""
    async for event in run.fetch_history_events(page_size=1):
        payloads = event.workflow_execution_started_event_attributes.input.payloads
        if event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED or len(payloads) != 1:
            return None
        (start,) = await activity.client().data_converter.decode(payloads, [dict[str, Any]])
        return start.get("after") if isinstance(start, dict) else None
    return None


async def wait_for_head(read: Callable[[], Awaitable[Head | None]], upto: int) -> Head | None:
    """Read a head again, for some seconds, while it does not reach to `upto`."""
    until = time.monotonic() + OLD_HEAD_SECONDS
    while True:
        head = await read()
        if upto <= (head.last_seq if head else -1) or time.monotonic() > until:
            return head
        await asyncio.sleep(OLD_HEAD_PAUSE_SECONDS)


def check_head(head: Head | None, session_id: str, upto: int) -> None:
    """Check that a head reaches to the entry that the server remembers.

    Raises:
        ObjectDamaged: There is no head.
        ThreadMismatch: It does not reach so far.
    """
    if upto <= (head.last_seq if head else -1):
        return
    remembered = f"the server remembers entries up to {upto}"
    repair = f"Run `clew recover {session_id}`, or restore the store from a newer backup"
    if head is None:
        raise ObjectDamaged(
            f"the archive of session {session_id!r}",
            f"the store has lost its head, and {remembered}. {repair}. To give the session up: "
            f"`clew delete {session_id}`",
        )
    raise ThreadMismatch(
        f"the archive of session {session_id!r} ends with entry {head.last_seq}, and {remembered}: the store is "
        f"older than the session. {repair}. To give the newer entries up: `clew recover {session_id} --keep archive`"
    )


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
