"""Activities that list archived sessions and delete them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.session.namespace import find_registered
from clew_activities.archive import Archive, ObjectDamaged, ObjectMissing
from clew_activities.archive.errors import KeyMissing
from clew_activities.archive.thread_source import ThreadLocation, Threads, find_last_attempt
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract import MAX_PAGE_BYTES, DeleteSessionInput
from clew_workflows.contract.errors import NewerVersion, NotFound, WorkerUnavailable
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, ListSessionsInput, SessionsPage, SessionSummary, matches
from clew_workflows.contract.outputs import DeleteReceipt
from clew_workflows.contract.payloads import ToolMessage
from clew_workflows.session.subagents import make_child_id
from clew_workflows.temporal_faults.cancelled_calls import wait_at_most

# Which search attributes of sessions the Temporal namespace has. Setting one that it lacks would block a session.


FRESH_SECONDS = 30.0
"""Seconds for which the server's answer is used."""

log = logging.getLogger("clew.worker")


class SearchAttributes:
    """Finds out which search attributes the namespace of a worker has, and logs once which it lacks."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._known: tuple[str, ...] = ()
        self._fresh_until = 0.0
        self._warned = False

    async def list(self) -> tuple[str, ...]:
        """List the search attributes of sessions that the namespace has, for an activity.

        If the server does not say, the last answer is used.
        """
        async with self._asking:
            if time.monotonic() < self._fresh_until:
                return self._known
            self._fresh_until = time.monotonic() + FRESH_SECONDS
            client = activity.client()
            try:
                registered = await find_registered(client)
            except Exception as error:
                # A session works without them: no failure of the server may keep it from starting.
                self._warn(f"the server does not say which search attributes it has: {error}")
                return self._known
            self._known = tuple(registered)
            if missing := [name for name in SEARCH_ATTRIBUTES if name not in registered]:
                self._warn(f"the namespace {client.namespace!r} lacks the search attributes {', '.join(missing)}")
            return self._known

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s. Lists of sessions show less and cannot be filtered: run `clew setup-namespace`", problem)


# The activity of the workflow `ListSessions`: one page of the sessions that have an archive.


MAX_ROWS = 500
"""Most sessions of a page."""
MAX_SCANNED = 2_000
"""Most heads that are read for one page, so that a page of rare sessions takes bounded time."""
BATCH = 500
"""Heads whose names are listed at a time."""
READERS = 16
"""Heads that are read at the same time."""


class ListingActivities:
    """Lists sessions for clients, from the heads of their archives."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    @activity.defn(name="list_sessions")
    async def list_sessions(self, query: ListSessionsInput) -> dict[str, Any]:
        """List the sessions after `query.after`, in the order of their ids."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            page = await self._fill_page(query)
        return page.as_dict()

    async def _fill_page(self, query: ListSessionsInput) -> SessionsPage:
        rows: list[SessionSummary] = []
        after, room, scanned = query.after, MAX_PAGE_BYTES, 0
        while scanned < MAX_SCANNED:
            session_ids = await self._archive.list_sessions(after, BATCH)
            for summary in await self._read_summaries(session_ids):
                if summary and matches(summary, query):
                    room -= len(to_json(summary.as_dict())) + 1
                    if rows and (room < 0 or len(rows) == MAX_ROWS):
                        return SessionsPage(sessions=tuple(rows), next_after=after)
                    rows.append(summary)
                after = summary.session_id if summary else after
            if len(session_ids) < BATCH:
                return SessionsPage(sessions=tuple(rows))
            after, scanned = session_ids[-1], scanned + len(session_ids)
        return SessionsPage(sessions=tuple(rows), next_after=after)

    async def _read_summaries(self, session_ids: Sequence[str]) -> list[SessionSummary | None]:
        limit = asyncio.Semaphore(READERS)

        async def read(session_id: str) -> SessionSummary | None:
            async with limit:
                return await self._read_summary(session_id)

        return list(await asyncio.gather(*map(read, session_ids)))

    async def _read_summary(self, session_id: str) -> SessionSummary | None:
        """Read what lists show of a session; None: it has been deleted meanwhile.

        Of a head that this worker cannot read, only the id is known.
        """
        try:
            head = await self._archive.read_head(session_id)
        except (KeyMissing, NewerVersion, ObjectDamaged):
            return SessionSummary(session_id=session_id, archived=True)
        if head is None:
            return None
        summary = head.summary or SessionSummary(session_id=session_id)
        if head.status == "live":
            # A later workflow run has changed it since, or its workflow was terminated.
            return summary.model_copy(update={"status": "interrupted"})
        ended = summary.status if summary.status == "closed" else "hibernated"
        return summary.model_copy(update={"status": ended, "archived": True})


# Deleting sessions with their subagents: a running session is closed first, objects that forks need are kept.


MAX_RESULTS = 1_000
"""Newest messages of a session that are searched for subagents which have only just ended."""
DELETERS = 8
"""Subagents of a session that are deleted at the same time."""


class DeletionActivities:
    """Deletes sessions for clients."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._threads = Threads(archive)

    @activity.defn(name="delete_session")
    async def delete_session(self, request: DeleteSessionInput) -> dict[str, Any]:
        """Close the session, delete its subagents, its archive and its event histories.

        A retry finishes an interrupted deletion.
        """
        session_id = request.session_id
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            try:
                location = await self._threads.find(session_id)
            except ApplicationError as error:
                if error.type != NotFound.type or activity.info().attempt == 1:
                    raise
                await _delete_histories(session_id)
                return DeleteReceipt(deleted_segments=0).as_dict()
            return (await self._delete(location)).as_dict()

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
        await _delete_histories(session_id)
        return DeleteReceipt(
            deleted_segments=segments + sum(receipt.deleted_segments for receipt in deleted),
            deleted_subagents=len(deleted) + sum(receipt.deleted_subagents for receipt in deleted),
        )

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
        try:
            location = await self._threads.find(child_id)
        except ApplicationError as error:
            if error.type != NotFound.type:
                raise
            return None
        if location.has_workflow:
            described = await activity.client().get_workflow_handle(child_id).describe()
            if described.parent_id == session_id:
                return location
        # One that was opened again has no parent on the server. A fork has the family of its origin.
        head = location.head
        summary = head.summary if head and head.family == child_id else None
        return location if summary and summary.parent == session_id else None


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
    """Delete the event histories of all its workflow runs that the server still has."""
    client = activity.client()
    # A session id contains no quotes.
    runs = [execution.run_id async for execution in client.list_workflows(f'WorkflowId = "{session_id}"')]
    for run_id in ["", *runs]:
        execution = WorkflowExecution(workflow_id=session_id, run_id=run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        try:
            await client.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
