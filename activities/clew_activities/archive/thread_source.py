"""Reads threads, archived and live parts as one.

`Threads` finds a session's archive and its workflow. `query_session` and `query_started_session` read from a
workflow, `ArchivedThread` from the archive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.session.transport import is_unknown
from clew_activities.archive import Archive, Head, ObjectDamaged, ObjectMissing, ended_runs
from clew_activities.archive.ended_runs import check_head, describe_run, find_archived_upto
from clew_workflows.contract import EntriesQuery
from clew_workflows.contract.errors import Interrupted, NotFound, Starting, ThreadMismatch, WorkerUnavailable
from clew_workflows.session.advance import Session
from clew_workflows.session.carried import restore
from clew_workflows.temporal_faults.query_ahead import QUERY_AHEAD
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import FrozenThread, LivePage, read_forward, read_tail

QUERY_TIMEOUT = timedelta(seconds=10)
"""The time of one attempt to query a session."""

_FINAL_STATUS = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)
MAX_UNSTARTED_EVENTS = 4
"""Most events of an execution whose first workflow task was never completed: it cannot answer a query."""
STARTING_SECONDS = 0.05
"""Seconds between two queries of a session that is starting."""
_entry = TypeAdapter(Entry)


@dataclass(frozen=True, slots=True)
class ThreadLocation:
    """Where a session's thread is: in the archive up to its head, after that in a workflow.

    Attributes:
        session_id: The session.
        head: Head of its archive; None: it has none, or it has not been looked up.
        live: The workflow that holds the entries that are not archived; None: all entries are archived.
        has_workflow: The server knows a workflow of the session.
        running: That workflow has not ended.
        is_old: The session has ended in good order, and the store shows a head from before its end.
    """

    session_id: str
    head: Head | None
    live: WorkflowHandle[Any, Any] | None
    has_workflow: bool
    running: bool
    is_old: bool = False

    @property
    def archived_upto(self) -> int:
        """Seq of the newest archived entry; -1: there is none."""
        return self.head.last_seq if self.head else -1


class Threads:
    """Finds threads and reads them, also while their sessions roll over."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def find(self, session_id: str) -> ThreadLocation:
        """Find a session's thread.

        Raises:
            ApplicationError: `not_found`: there is no such session.
            ObjectDamaged: The store has lost the head of a session that has ended.
            ThreadMismatch: The store is older than the session.
        """
        location, upto = await self._look_up_newest(session_id)
        check_head(location.head if location else None, session_id, upto)
        if location is None:
            raise make_not_found(session_id)
        return location

    async def look_up(self, session_id: str) -> ThreadLocation | None:
        """Find a session's thread, also where the store has lost some of it; None: there is no such session."""
        return (await self._look_up_newest(session_id))[0]

    async def _look_up_newest(self, session_id: str) -> tuple[ThreadLocation | None, int]:
        """Find a session's thread, and up to where its archive must reach; -1: that is not known.

        While the store shows a head from before the session's end, look again, for some seconds.
        """
        described = await describe_run(session_id)
        location = await self._look_up(session_id, described)
        if location and (location.live or not location.has_workflow):
            return location, -1
        upto = await find_archived_upto(session_id, described)
        until = time.monotonic() + ended_runs.OLD_HEAD_SECONDS
        while (location.archived_upto if location else -1) < upto and time.monotonic() < until:
            await asyncio.sleep(ended_runs.OLD_HEAD_PAUSE_SECONDS)
            described = await describe_run(session_id)
            location = await self._look_up(session_id, described)
            # One that was deleted meanwhile has no run, and no head is missing.
            if described is None or (location and location.live):
                return location, -1
        return location, upto

    async def _look_up(
        self, session_id: str, described: WorkflowExecutionDescription | None
    ) -> ThreadLocation | None:
        """Find a session's thread by what the server says of the session's newest workflow run."""
        handle = activity.client().get_workflow_handle(session_id)
        status, started, execution = None, False, None
        if described:
            status, execution = described.status, described.raw_info.first_run_id
            started = described.history_length > MAX_UNSTARTED_EVENTS
        head = await self._archive.read_head(session_id)
        is_complete = head is None or head.status == "closed"
        match status:
            # All entries are in the archive; a fork may have appended more since.
            case None | WorkflowExecutionStatus.COMPLETED:
                live = None
            # The session hibernated, or never started: there was no archive, or it refused the one it found.
            case WorkflowExecutionStatus.CANCELED | WorkflowExecutionStatus.FAILED if is_complete:
                live = None
            # If the session had started, it may have written entries that it has not archived.
            case WorkflowExecutionStatus.TERMINATED | WorkflowExecutionStatus.TIMED_OUT if (
                is_complete and not started
            ):
                live = None
            case _:
                live = handle
        if head is None and live is None:
            return None
        return ThreadLocation(
            session_id,
            head,
            live,
            has_workflow=status is not None,
            running=status == WorkflowExecutionStatus.RUNNING,
            is_old=(
                status == WorkflowExecutionStatus.COMPLETED
                and head is not None
                and head.status == "live"
                and head.run_id == execution
            ),
        )

    def find_own(self) -> ThreadLocation:
        """Locate the thread of the session that this activity runs for. Its archive is looked up when needed."""
        return ThreadLocation(
            activity.info().workflow_id or "", None, get_own_session(), has_workflow=True, running=True
        )

    def read_forward(
        self, location: ThreadLocation, query: EntriesQuery, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries from `query.from_seq` on, in order. The caller filters them again: not all may match."""
        return read_forward(_StoredParts(self, self._archive, location, query), query.from_seq, to_seq)

    async def read_backward(
        self, location: ThreadLocation, query: EntriesQuery, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries down to `query.from_seq`, the newest first. The caller filters them again."""
        head, live = await self._read_tail(location, query, to_seq)
        for entry in reversed(live):
            yield entry
        if head:
            upto = head.last_seq if to_seq is None else min(head.last_seq, to_seq)
            older = self._archive.read_back(head.family, head.root, query.from_seq, upto, kinds=_select_kinds(query))
            async for entry in older:
                yield entry

    async def freeze(self, location: ThreadLocation, at_seq: int | None = None) -> FrozenThread:
        """Take a snapshot of the thread as it is now, or up to `at_seq`. Later entries do not change it."""
        head, live = await self._read_tail(location, EntriesQuery(), at_seq)
        newest = live[-1].seq if live else head.last_seq if head else -1
        archived = ArchivedThread(self._archive, head.family, head.root, head.last_seq) if head else None
        return FrozenThread(newest if at_seq is None else min(at_seq, newest), tuple(live), archived)

    async def read_session(self, location: ThreadLocation) -> Session:
        """Read a session's current state and the live part of its thread.

        Raises:
            ObjectMissing: The session is archived, and its archive has no state.
        """
        if location.live:
            try:
                return restore((await query_started_session(location.live, "carried"))["carried"])
            except ApplicationError as error:
                if error.type not in (Interrupted.type, ThreadMismatch.type):
                    raise
        if location.head is None or location.head.state is None:
            raise ObjectMissing(f"the state of session {location.session_id!r}")
        try:
            return restore(from_json(await self._archive.read_state(location.head.family, location.head.state)))
        except ObjectMissing:
            # A session that was reopened meanwhile has a new state, and the old one is deleted.
            newer = await self.find(location.session_id)
            if newer.head == location.head:
                raise
        return await self.read_session(newer)

    async def find_last_seq(self, location: ThreadLocation) -> int:
        """Find the seq of a thread's newest entry; -1: it has none."""
        async for entry in self.read_backward(location, EntriesQuery(from_seq=max(location.archived_upto, 0))):
            return entry.seq
        return -1

    async def _read_tail(
        self, location: ThreadLocation, query: EntriesQuery, to_seq: int | None
    ) -> tuple[Head | None, list[Entry]]:
        """Read the entries that only the session holds, and the head of the archive that ends right before them."""
        parts = _StoredParts(self, self._archive, location, query)
        relocated, live = await read_tail(parts, query.from_seq, to_seq)
        return relocated.location.head, live


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """Reads the entries under a root, the newest first.

    Attributes:
        archive: The archive.
        family: The family whose objects hold the thread.
        root: The root of its index; None: nothing is archived.
        upto: The seq of the newest entry.
    """

    archive: Archive
    family: str
    root: str | None
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries of a kind from `to_seq` down to `from_seq`; with `context_ref`, of that lane alone."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        async for entry in self.archive.read_back(self.family, self.root, from_seq, upto, kinds=frozenset({kind})):
            if context_ref is None or entry.lane == context_ref:
                yield check_entry(entry, self.family)


def check_entry(entry: Entry, family: str) -> Entry:
    """Check the fields and the payload of an archived entry, before a session gets it.

    A checksum shows that an object has its name's content, not that Clew has written it. An entry that cannot be
    parsed would fail a session's workflow tasks.

    Raises:
        ObjectDamaged: The entry is malformed.
    """
    try:
        _entry.validate_json(to_json(entry.as_dict()), strict=True)
        _ = entry.body
    except (ValueError, TypeError, RecursionError) as error:
        raise ObjectDamaged(f"an object of family {family!r}", f"entry {entry.seq} is malformed: {error}") from None
    return entry


@dataclass(frozen=True, slots=True)
class _StoredParts:
    """A thread's parts as a worker reads them: the archive from the store, the live part by queries."""

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
        async for entry in self.archive.read(
            head.family, head.root, from_seq, to_seq, kinds=_select_kinds(self.query)
        ):
            yield entry

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        live = self.location.live
        if live is None:
            return None
        filters = self.query.model_dump(exclude_none=True, include=EntriesQuery.model_fields.keys() - {"limit"})
        query_function = query_started_session if self.location.running else query_session
        try:
            page = await query_function(live, "entries", filters | {"from_seq": from_seq})
        except RPCError as error:
            # The server has deleted the workflow since it was located.
            if not is_unknown(error):
                raise
            return None
        except ApplicationError as error:
            # A session that was terminated before it had started has no entries.
            if error.type != Starting.type:
                raise
            return LivePage(())
        entries = tuple(map(Entry.from_json, page["entries"]))
        return LivePage(entries, page.get("next_seq"), page.get("archived_before", 0))

    async def relocate(self, _first_live_seq: int | None, /) -> _StoredParts:
        return replace(self, location=await self.threads.find(self.location.session_id))


def _select_kinds(query: EntriesQuery) -> frozenset[str] | None:
    return None if query.kind is None else frozenset({query.kind})


def get_own_session() -> WorkflowHandle[Any, Any]:
    """Return a handle to the session that this activity runs for, in the workflow run that scheduled it."""
    info = activity.info()
    return activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)


async def query_session(
    session: WorkflowHandle[Any, Any],
    query: str,
    arguments: dict[str, Any] | None = None,
    *,
    attempts_until: datetime | None = None,
) -> dict[str, Any]:
    """Query a session. While no worker answers, repeat the query: the session's worker may just have died.

    Raises:
        ApplicationError: The session refused the query; the type is the refusal's, or `context_unavailable`. No
            worker has answered before `attempts_until`; the type is `worker_unavailable`.
        RPCError: There is no such session, or the server rejects the request.
    """
    pause = 0.1
    while True:
        try:
            args = [] if arguments is None else [arguments]
            answer: dict[str, Any] = await session.query(query, args=args, rpc_timeout=QUERY_TIMEOUT)
            return answer
        except WorkflowQueryFailedError as error:
            if error.message == QUERY_AHEAD:
                await asyncio.sleep(pause)
                continue
            error_type, _, message = error.message.partition(": ")
            is_refusal = error_type.replace("_", "").isalpha() and bool(message)
            raise ApplicationError(
                message if is_refusal else error.message,
                type=error_type if is_refusal else "context_unavailable",
                non_retryable=is_refusal,
            ) from error
        except RPCError as error:
            if error.status in _FINAL_STATUS:
                raise
            if attempts_until and datetime.now(UTC) > attempts_until:
                message = f"no worker answers for session {session.id!r}: {error.message}"
                raise ApplicationError(message, type=WorkerUnavailable.type, non_retryable=True) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


def make_not_found(session_id: str) -> ApplicationError:
    """Make the error of an activity for a session that does not exist."""
    return ApplicationError(f"there is no session {session_id!r}", type=NotFound.type, non_retryable=True)


def find_last_attempt() -> datetime | None:
    """Find until when this activity may begin another attempt to reach a session, so that it can tell its caller."""
    info = activity.info()
    if info.schedule_to_close_timeout is None:
        return None
    return info.scheduled_time + info.schedule_to_close_timeout - QUERY_TIMEOUT - timedelta(seconds=2)


async def query_started_session(
    session: WorkflowHandle[Any, Any], query: str, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Query a session for a caller. If it is starting, repeat the query until it has started.

    Raises:
        ApplicationError: As `query_session`; `worker_unavailable` before the activity's time is over.
    """
    while True:
        try:
            return await query_session(session, query, arguments, attempts_until=find_last_attempt())
        except ApplicationError as error:
            if error.type != Starting.type:
                raise
        await asyncio.sleep(STARTING_SECONDS)
