"""Threads wherever they are: what the archive holds and what the live session holds, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.context.loading import meeting
from clew.contract import MAX_PAGE_BYTES, WORKFLOW_TYPE, EntriesQuery, ReadThreadInput
from clew.errors import Starting, ThreadMismatch
from clew.thread.entries import Entry
from clew_activities.archive import Archive, Head, ObjectMissing
from clew_activities.archiving import ArchiveBack, explained
from clew_activities.heartbeat import beating
from clew_activities.session_queries import ask
from clew_workflows.core.carried import Carried, restore

UNBEGUN_EVENTS = 4
"""Of an execution that was broken off before its first workflow task was done: nobody can be asked about it."""
MAX_SCANNED = 50_000
"""Entries that one page looks at: what is rare is found within several pages, each in bounded time."""
STARTING_SECONDS = 0.05
"""Until a session is asked again that has just begun."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session's thread is: in the archive up to its head, and behind that in a workflow.

    `began`: the server knows a workflow of it, `running`: one that has not ended.
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


@dataclass(frozen=True, slots=True)
class ThreadBack:
    """Reads a thread as it was at one moment, up to a seq, the newest entry first.

    `live` is what the session itself held, in order; `archived` reads all that is before it.
    """

    upto: int
    live: tuple[Entry, ...]
    archived: ArchiveBack | None

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """The entries of a kind, and of a lane where one is named, from `to_seq` down to `from_seq`."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        for entry in reversed(self.live):
            if from_seq <= entry.seq <= upto and entry.kind == kind and context_ref in (None, entry.lane):
                yield entry
        if self.archived and from_seq <= self.archived.upto:
            found = self.archived.read(kind, context_ref=context_ref, from_seq=from_seq, to_seq=upto)
            async for entry in found:
                yield entry

    def up_to(self, seq: int) -> ThreadBack:
        """The same thread, read from an earlier seq back."""
        return replace(self, upto=min(seq, self.upto))


class Threads:
    """Reads whole threads: never a gap, never a duplicate, also while the session rolls over."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def find(self, session_id: str) -> Place:
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
        head = await self._archive.head(session_id)
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
        return Place(session_id, head, live, status is not None, status == WorkflowExecutionStatus.RUNNING)

    async def forward(self, place: Place, asked: EntriesQuery, to_seq: int | None = None) -> AsyncIterator[Entry]:
        """The entries from `asked.from_seq` on, in order. Those that no filter lets pass are among the archived."""
        seq = asked.from_seq
        while to_seq is None or seq <= to_seq:
            if head := place.head:
                async for entry in self._archive.read(head.family, head.root, seq, to_seq, kinds=_kinds(asked)):
                    yield entry
                seq = max(seq, head.last_seq + 1)
                if to_seq is not None and seq > to_seq:
                    return
            page = await self._live(place, asked, seq)
            if page is None:
                place = await self._moved_on(place, seq)
                continue
            for row in page["entries"]:
                if to_seq is not None and row["seq"] > to_seq:
                    return
                yield Entry.from_json(row)
            if "next_seq" not in page:
                return
            seq = page["next_seq"]

    async def backward(self, place: Place, asked: EntriesQuery, to_seq: int | None = None) -> AsyncIterator[Entry]:
        """The entries down to `asked.from_seq`, the newest first."""
        place, live = await self._tail(place, asked, to_seq)
        for entry in reversed(live):
            yield entry
        if head := place.head:
            upto = head.last_seq if to_seq is None else min(head.last_seq, to_seq)
            async for entry in self._archive.read_back(
                head.family, head.root, asked.from_seq, upto, kinds=_kinds(asked)
            ):
                yield entry

    async def back(self, place: Place, at_seq: int | None = None) -> ThreadBack:
        """Reads from the newest entry back, or from a seq: one state of the thread, however it goes on meanwhile."""
        place, live = await self._tail(place, EntriesQuery(), at_seq)
        newest = live[-1].seq if live else place.archived_upto
        head = place.head
        archived = ArchiveBack(self._archive, head.family, head.root, head.last_seq) if head else None
        return ThreadBack(newest if at_seq is None else min(at_seq, newest), tuple(live), archived)

    async def _tail(self, place: Place, asked: EntriesQuery, to_seq: int | None) -> tuple[Place, list[Entry]]:
        """What only the session itself holds, up to a seq, in order, and where the thread was meanwhile."""
        live: list[Entry] = []
        while to_seq is None or to_seq > place.archived_upto:
            seq: int | None = max(asked.from_seq, place.archived_upto + 1)
            while seq is not None and (page := await self._live(place, asked, seq)):
                live += [Entry.from_json(row) for row in page["entries"]]
                seq = page.get("next_seq")
            if seq is None:
                break
            live.clear()
            place = await self._moved_on(place, seq)
        return place, [entry for entry in live if to_seq is None or entry.seq <= to_seq]

    async def carried(self, place: Place) -> Carried:
        """What a session would go on from at present.

        Raises:
            ObjectMissing: the archive has no state of it.
        """
        if place.live:
            try:
                return restore((await ask_begun(place.live, "carried"))["carried"])
            except ApplicationError as error:
                if error.type != ThreadMismatch.type:
                    raise
        if place.head is None or place.head.state is None:
            raise ObjectMissing(f"the state of session {place.session_id!r}")
        try:
            return restore(from_json(await self._archive.read_state(place.head.family, place.head.state)))
        except ObjectMissing:
            # A session that has been taken up meanwhile has another one.
            newer = await self.find(place.session_id)
            if newer.head == place.head:
                raise
        return await self.carried(newer)

    async def last_seq(self, place: Place) -> int:
        """The seq of a thread's newest entry; -1 while there is none."""
        async for entry in self.backward(place, EntriesQuery(from_seq=max(place.archived_upto, 0))):
            return entry.seq
        return -1

    async def _live(self, place: Place, asked: EntriesQuery, seq: int) -> dict[str, Any] | None:
        """A page of what the session itself holds from a seq on; None: that begins later by now."""
        if place.live is None:
            return {"entries": []}
        filters = asked.model_dump(exclude_none=True, include=EntriesQuery.model_fields.keys() - {"limit"})
        try:
            asking = ask_begun if place.running else ask
            page = await asking(place.live, "entries", filters | {"from_seq": seq})
        except ApplicationError as error:
            # One that was broken off before it had begun has said nothing.
            if error.type != Starting.type:
                raise
            return {"entries": []}
        return None if "archived_before" in page else page

    async def _moved_on(self, place: Place, seq: int) -> Place:
        """Where the thread is now: more of it is archived than was when it was looked up."""
        found = await self.find(place.session_id)
        if found.archived_upto < seq:
            raise ApplicationError(
                f"entry {seq} of session {place.session_id!r} is neither in its archive nor in its workflow",
                type="archive_damaged",
                non_retryable=True,
            )
        return found


async def ask_begun(
    session: WorkflowHandle[Any, Any], query: str, asked: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The answer of a session; one that looks for its archive is waited for."""
    while True:
        try:
            return await ask(session, query, asked)
        except ApplicationError as error:
            if error.type != Starting.type:
                raise
        await asyncio.sleep(STARTING_SECONDS)


class ReadingActivities:
    """Reads threads for clients."""

    def __init__(self, archive: Archive) -> None:
        self._threads = Threads(archive)

    @activity.defn(name="read_thread")
    async def read_thread(self, asked: ReadThreadInput) -> dict[str, Any]:
        """One page of a thread, and where the next one begins; with `newest`, where it ends."""
        async with beating(), explained(damage_is_final=True):
            place = await self._threads.find(asked.session_id)
            if asked.newest is None:
                page = await _page(self._threads.forward(place, asked, asked.to_seq), asked, asked.limit)
                return page.as_json()
            page = await _page(self._threads.backward(place, asked, asked.to_seq), asked, asked.newest, step=-1)
            page.rows.reverse()
            return page.as_json()


@dataclass(slots=True)
class _Page:
    rows: list[dict[str, Any]]
    next_seq: int | None = None

    def as_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"entries": self.rows}
        return answer if self.next_seq is None else answer | {"next_seq": self.next_seq}


async def _page(found: AsyncIterator[Entry], asked: ReadThreadInput, limit: int | None, step: int = 1) -> _Page:
    """As many entries as a page holds, read in one direction."""
    meets, room, scanned = meeting(asked), MAX_PAGE_BYTES, 0
    page = _Page([])
    following: int | None = None
    async for entry in found:
        if meets(entry):
            row = entry.as_json()
            room -= len(to_json(row)) + 1
            if page.rows and room < 0:
                following = entry.seq
                break
            page.rows.append(row)
        scanned += 1
        if len(page.rows) == limit or scanned == MAX_SCANNED:
            following = entry.seq + step
            break
    if following is not None and asked.from_seq <= following and (asked.to_seq is None or following <= asked.to_seq):
        page.next_seq = following
    return page


def _kinds(asked: EntriesQuery) -> frozenset[str] | None:
    return None if asked.kind is None else frozenset({asked.kind})
