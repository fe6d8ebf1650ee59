"""The activity that deletes a session with its subagents: it closes a running one, and keeps what forks need."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.schedules import Schedules
from clew.session.connection import Clew
from clew.session.handle import SERVICE_PREFIX
from clew_activities.archive import Archive, ObjectDamaged, ObjectMissing
from clew_activities.archive.archive_errors import translate_archive_errors
from clew_activities.archive.ended_runs import describe_run
from clew_activities.archive.thread_source import ThreadLocation, Threads, find_last_attempt, make_not_found
from clew_activities.heartbeats import send_heartbeats
from clew_activities.live_writer import LiveWriter
from clew_workflows.contract import WORKFLOW_TYPE, DeleteSessionInput
from clew_workflows.contract.config import make_fairness_key
from clew_workflows.contract.errors import NotFound, WorkerUnavailable
from clew_workflows.contract.names import DELETED_WORKFLOW, DELIVERY_PREFIX, make_child_id
from clew_workflows.contract.outputs import DeleteReceipt
from clew_workflows.contract.payloads import ToolMessage
from clew_workflows.temporal_faults.cancelled_calls import wait_at_most

MAX_RESULTS = 1_000
"""Newest messages of a session that are searched for subagents which have only just ended."""
DELETERS = 8
"""Subagents of a session that are deleted at the same time."""
LISTING_SECONDS = 10.0
"""Longest wait until the server's lists show that a session was deleted, in seconds."""
LISTING_PAUSE_SECONDS = 0.1
"""Seconds between two looks at them."""
_UPLOADS = ("putblob", "startupload", "finishupload")
"""The verbs in the ids of the workflows whose histories have bytes, URLs and names of files."""


class DeletionActivities:
    """Deletes sessions for clients."""

    def __init__(self, archive: Archive, live: LiveWriter) -> None:
        self._archive, self._live = archive, live
        self._threads = Threads(archive)

    @activity.defn(name="delete_session")
    async def delete_session(self, request: DeleteSessionInput) -> dict[str, Any]:
        """Close the session, delete its subagents, its archive and its event histories.

        A retry, or another call, finishes an interrupted deletion.
        """
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            await _delete_schedules(request.session_id)
            location = await self._threads.look_up(request.session_id)
            receipt = await (self._delete(location) if location else self._delete_rest(request.session_id))
            return receipt.as_dict()

    async def _delete_rest(self, session_id: str) -> DeleteReceipt:
        """Delete what is left of no session: by an interrupted deletion, a failed import, or uploads for a new one.

        Raises:
            ApplicationError: `not_found`: there is nothing, and no earlier attempt has deleted it.
        """
        found = await self._archive.delete_rest(session_id)
        await self._delete_traces(session_id)
        if not found and activity.info().attempt == 1:
            raise make_not_found(session_id)
        return DeleteReceipt(deleted_segments=0)

    async def _delete(self, location: ThreadLocation) -> DeleteReceipt:
        """Delete a session. Its subagents come first: an interrupted deletion still finds them by the session."""
        session_id = location.session_id
        if location.running:
            await _close(session_id)
        gate = asyncio.Semaphore(DELETERS)

        async def delete(child_id: str) -> DeleteReceipt | None:
            async with gate:
                child = await self._find_subagent(session_id, child_id)
                return await self._delete(child) if child else None

        children = await asyncio.gather(*map(delete, await self._list_candidates(session_id)))
        deleted = [receipt for receipt in children if receipt]
        segments = await self._archive.delete(session_id)
        await self._delete_traces(session_id)
        return DeleteReceipt(
            deleted_segments=segments + sum(receipt.deleted_segments for receipt in deleted),
            deleted_subagents=len(deleted) + sum(receipt.deleted_subagents for receipt in deleted),
        )

    async def _delete_traces(self, session_id: str) -> None:
        """Delete what is beside the archive. The streams are last: what a session's end says comes a moment later."""
        await _delete_histories(session_id)
        await self._live.delete(session_id)

    async def _list_candidates(self, session_id: str) -> list[str]:
        """List the ids that the session's subagents may have: in the archive, on the server, in the newest results.

        The archive has each session that has ended, and the server those that have not. The server's list is a second
        late, so it may not have a subagent whose result the thread has already.
        """
        prefix, candidates = make_child_id(session_id, "tool"), set[str]()
        async for archived in self._archive.list_prefixed(prefix):
            candidates.add(archived)
        async for execution in activity.client().list_workflows(f'WorkflowId STARTS_WITH "{prefix}"'):
            candidates.add(execution.id)
        # A damaged thread is deleted, too.
        with suppress(ObjectDamaged, ObjectMissing):
            async for child_id in self._read_newest(session_id):
                candidates.add(child_id)
        # The others are subagents of subagents, or of the session that this one was forked from.
        return sorted(child for child in candidates if re.fullmatch(re.escape(prefix) + "[0-9]+", child))

    async def _read_newest(self, session_id: str) -> AsyncIterator[str]:
        """Read the ids of the subagents that the newest messages name, if the thread is archived completely."""
        head = await self._archive.read_head(session_id)
        if head is None or head.status != "closed":
            return
        read = 0
        kinds = frozenset({"ai_message"})
        async for entry in self._archive.read_back(head.family, head.root, 0, head.last_seq, kinds=kinds):
            if isinstance(body := entry.body, ToolMessage) and body.subagent:
                yield body.subagent.session_id
            read += 1
            if read == MAX_RESULTS:
                return

    async def _find_subagent(self, session_id: str, child_id: str) -> ThreadLocation | None:
        """Find a subagent; None: there is no such session, or it is not a subagent of this one."""
        location = await self._threads.look_up(child_id)
        if location is None:
            return None
        if location.has_workflow:
            described = await activity.client().get_workflow_handle(child_id).describe()
            if described.parent_id == session_id:
                return location
        # One that was opened again has no parent on the server. A fork has the family of its origin.
        head = location.head
        summary = head.summary if head and head.family == child_id else None
        return location if summary and summary.parent == session_id else None


async def _delete_schedules(session_id: str) -> None:
    """Delete the schedules that send messages to a session: they would open a new one of its id."""
    schedules = Schedules(Clew(activity.client(), activity.info().task_queue))
    for schedule_id in (await schedules.find_targets()).get(session_id, ()):
        with suppress(NotFound):
            await schedules.delete(schedule_id)


async def _close(session_id: str) -> None:
    """End a running session.

    Raises:
        ApplicationError: It has not ended when the activity's time is nearly over; the type is `worker_unavailable`.
    """
    last = find_last_attempt()
    seconds = None if last is None else (last - datetime.now(UTC)).total_seconds()
    try:
        await wait_at_most(seconds, _end(activity.client().get_workflow_handle(session_id)))
    except TimeoutError:
        message = (
            f"session {session_id!r} has not ended in time: it will once a worker serves its task queue and can "
            "write its archive. Delete it again then"
        )
        raise ApplicationError(message, type=WorkerUnavailable.type, non_retryable=True) from None


async def _end(handle: WorkflowHandle[Any, Any]) -> None:
    try:
        await handle.signal("close", {"reason": "deleted"})
        await handle.result()
    except WorkflowFailureError:
        pass
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


async def _delete_histories(session_id: str) -> None:
    """Delete the event histories that the server still has: its own, those of its uploads and of its webhooks.

    The server deletes them in its own time, from which readers must not see anything: the id has another workflow
    before, `DeletedSession`. Another workflow may have the id already: it is none of Clew's.
    """
    client = activity.client()
    runs: set[tuple[str, str]] = set()
    if newest := await describe_run(session_id):
        runs.add((newest.run_id, session_id))
        await _replace(session_id)
    # A session id contains no quotes. Some of Temporal's databases do not tell the case of an id.
    query = f'WorkflowId = "{session_id}" AND WorkflowType = "{WORKFLOW_TYPE}"'
    runs |= {(run.run_id, run.id) async for run in client.list_workflows(query) if run.id == session_id}
    # Others that begin like that are those of sessions whose ids begin alike.
    for verb in _UPLOADS:
        uploads = f"{SERVICE_PREFIX}{verb}-{session_id}"
        runs |= {
            (run.run_id, run.id)
            async for run in client.list_workflows(f'WorkflowId STARTS_WITH "{uploads}"')
            if re.fullmatch("(/[^/]+)?-[0-9a-f]{32}", run.id.removeprefix(uploads))
        }
    # No session id has a slash.
    deliveries = f"{DELIVERY_PREFIX}{session_id}/"
    runs |= {
        (run.run_id, run.id)
        async for run in client.list_workflows(f'WorkflowId STARTS_WITH "{deliveries}"')
        if run.id.startswith(deliveries)
    }
    for run_id, workflow_id in sorted(runs):
        await _delete_run(workflow_id, run_id)


async def _replace(session_id: str) -> None:
    """Make `DeletedSession` the newest workflow of a session's id, and wait until lists show that.

    Raises:
        WorkflowAlreadyStartedError: The session was opened again meanwhile. The next attempt ends it.
    """
    client = activity.client()
    handle = await client.start_workflow(
        DELETED_WORKFLOW,
        id=session_id,
        task_queue=activity.info().task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        static_summary=f"deleted · {session_id}",
        priority=Priority(fairness_key=make_fairness_key(session_id)),
    )
    await handle.result()
    give_up_at = time.monotonic() + LISTING_SECONDS
    while time.monotonic() < give_up_at:
        if await _is_listed(session_id, handle.result_run_id or ""):
            return
        await asyncio.sleep(LISTING_PAUSE_SECONDS)


async def _is_listed(session_id: str, run_id: str) -> bool:
    """Whether lists show that workflow run, and no session of this id that runs."""
    query = (
        f'WorkflowId = "{session_id}" AND (WorkflowType = "{DELETED_WORKFLOW}" OR '
        f'(WorkflowType = "{WORKFLOW_TYPE}" AND ExecutionStatus = "Running"))'
    )
    runs = [run async for run in activity.client().list_workflows(query) if run.id == session_id]
    is_open = any(run.workflow_type == WORKFLOW_TYPE for run in runs)
    return not is_open and any(run.run_id == run_id for run in runs)


async def _delete_run(workflow_id: str, run_id: str) -> None:
    client = activity.client()
    named = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=named)
    try:
        await client.workflow_service.delete_workflow_execution(request)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
