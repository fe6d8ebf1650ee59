"""Threads wherever they are: where a session's archive and its live workflow are found, and read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.contract import WORKFLOW_TYPE, EntriesQuery
from clew.errors import Starting, ThreadMismatch
from clew.thread.entries import Entry
from clew.thread.source import FrozenThread, LivePage, read_forward, read_tail
from clew_activities.archive import Archive, Head, ObjectMissing
from clew_activities.archive_activities import ArchivedThread
from clew_activities.session_queries import get_own_session, query_session
from clew_workflows.core.advance import Session
from clew_workflows.core.carried import restore

UNBEGUN_EVENTS = 4
"""Events of an execution that was terminated before its first workflow task was done: it can answer no query."""
STARTING_SECONDS = 0.05
"""Seconds until a session that has just begun is asked again."""


@dataclass(frozen=True, slots=True)
class ThreadLocation:
    """Where a session's thread is: in the archive up to its head, and behind that in a workflow.

    Attributes:
        session_id: The session.
        head: Where its archive ends; None: it has none, or it has not been looked up.
        live: The workflow that holds what is not archived; None: all of the thread is archived.
        began: The server knows a workflow of the session.
        running: That workflow has not ended.
    """

    session_id: str
    head: Head | None
    live: WorkflowHandle[Any, Any] | None
    began: bool
    running: bool

    @property
    def archived_upto(self) -> int:
        """The seq of the newest archived entry, -1 where there is none."""
        return self.head.last_seq if self.head else -1


class Threads:
    """Finds threads and reads them whole, also while the session rolls over."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def find(self, session_id: str) -> ThreadLocation:
        """Where a session's thread is.

        Raises:
            ApplicationError: `not_found`; there is none.
        """
        handle = activity.client().get_workflow_handle(session_id)
        status, begun = None, False
        try:
            described = await handle.describe()
            status = described.status if described.workflow_type == WORKFLOW_TYPE else None
            begun = described.history_length > UNBEGUN_EVENTS
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        head = await self._archive.read_head(session_id)
        whole = head is None or head.status == "closed"
        match status:
            # It is in the archive to the last entry, and may have got more there since.
            case None | WorkflowExecutionStatus.COMPLETED:
                live = None
            # It was put away, or has never begun: it had no archive, or the one that it found is not for it.
            case WorkflowExecutionStatus.CANCELED | WorkflowExecutionStatus.FAILED if whole:
                live = None
            # Broken off, it may have said more than it has put away, if it has begun at all.
            case WorkflowExecutionStatus.TERMINATED | WorkflowExecutionStatus.TIMED_OUT if whole and not begun:
                live = None
            case _:
                live = handle
        if head is None and live is None:
            raise ApplicationError(f"there is no session {session_id!r}", type="not_found", non_retryable=True)
        return ThreadLocation(session_id, head, live, status is not None, status == WorkflowExecutionStatus.RUNNING)

    def find_own(self) -> ThreadLocation:
        """Where the thread of the session is that this activity works for; its archive is looked up when needed."""
        return ThreadLocation(activity.info().workflow_id or "", None, get_own_session(), began=True, running=True)

    def read_forward(
        self, location: ThreadLocation, query: EntriesQuery, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """The entries from `query.from_seq` on, in order. The filters thin them out but need not meet all."""
        return read_forward(_StoredParts(self, self._archive, location, query), query.from_seq, to_seq)

    async def read_backward(
        self, location: ThreadLocation, query: EntriesQuery, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """The entries down to `query.from_seq`, the newest first; filtered as by `forward`."""
        head, live = await self._read_tail(location, query, to_seq)
        for entry in reversed(live):
            yield entry
        if head:
            upto = head.last_seq if to_seq is None else min(head.last_seq, to_seq)
            older = self._archive.read_back(head.family, head.root, query.from_seq, upto, kinds=_kinds(query))
            async for entry in older:
                yield entry

    async def freeze(self, location: ThreadLocation, at_seq: int | None = None) -> FrozenThread:
        """The thread as it is now, or up to a seq, however it goes on meanwhile."""
        head, live = await self._read_tail(location, EntriesQuery(), at_seq)
        newest = live[-1].seq if live else head.last_seq if head else -1
        archived = ArchivedThread(self._archive, head.family, head.root, head.last_seq) if head else None
        return FrozenThread(newest if at_seq is None else min(at_seq, newest), tuple(live), archived)

    async def read_carried(self, location: ThreadLocation) -> Session:
        """What a session would go on from at present.

        Raises:
            ObjectMissing: the archive has no state of it.
        """
        if location.live:
            try:
                return restore((await query_started_session(location.live, "carried"))["carried"])
            except ApplicationError as error:
                if error.type != ThreadMismatch.type:
                    raise
        if location.head is None or location.head.state is None:
            raise ObjectMissing(f"the state of session {location.session_id!r}")
        try:
            return restore(from_json(await self._archive.read_state(location.head.family, location.head.state)))
        except ObjectMissing:
            # A session that has been taken up meanwhile has another one.
            newer = await self.find(location.session_id)
            if newer.head == location.head:
                raise
        return await self.read_carried(newer)

    async def find_last_seq(self, location: ThreadLocation) -> int:
        """The seq of a thread's newest entry; -1 while there is none."""
        async for entry in self.read_backward(location, EntriesQuery(from_seq=max(location.archived_upto, 0))):
            return entry.seq
        return -1

    async def _read_tail(
        self, location: ThreadLocation, query: EntriesQuery, to_seq: int | None
    ) -> tuple[Head | None, list[Entry]]:
        """What the session alone holds, and the head of the archive right before that."""
        parts = _StoredParts(self, self._archive, location, query)
        located, live = await read_tail(parts, query.from_seq, to_seq)
        return located.location.head, live


@dataclass(frozen=True, slots=True)
class _StoredParts:
    """A thread's parts as a worker reaches them: the store itself, and queries to the session."""

    threads: Threads
    archive: Archive
    location: ThreadLocation
    query: EntriesQuery

    @property
    def archived_upto(self) -> int | None:
        return self.location.archived_upto if self.location.live else None

    async def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        head = self.location.head
        if head is None:
            return
        async for entry in self.archive.read(head.family, head.root, from_seq, to_seq, kinds=_kinds(self.query)):
            yield entry

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        live = self.location.live
        if live is None:
            return None
        filters = self.query.model_dump(exclude_none=True, include=EntriesQuery.model_fields.keys() - {"limit"})
        asking = query_started_session if self.location.running else query_session
        try:
            page = await asking(live, "entries", filters | {"from_seq": from_seq})
        except RPCError as error:
            # The server has forgotten the workflow since it was found.
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None
        except ApplicationError as error:
            # A session that was terminated before it had begun has said nothing.
            if error.type != Starting.type:
                raise
            return LivePage(())
        entries = tuple(map(Entry.from_json, page["entries"]))
        return LivePage(entries, page.get("next_seq"), page.get("archived_before", 0))

    async def relocate(self, _first_live_seq: int | None, /) -> _StoredParts:
        return replace(self, location=await self.threads.find(self.location.session_id))


async def query_started_session(
    session: WorkflowHandle[Any, Any], query: str, asked: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The answer of a session; one that looks for its archive is waited for."""
    while True:
        try:
            return await query_session(session, query, asked)
        except ApplicationError as error:
            if error.type != Starting.type:
                raise
        await asyncio.sleep(STARTING_SECONDS)


def _kinds(query: EntriesQuery) -> frozenset[str] | None:
    return None if query.kind is None else frozenset({query.kind})
