"""The archive's activities: a session's entries leave its history, and what is needed of them comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace

from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew.context.loading import load_lane, make_archived_thread
from clew.context.retention import retain
from clew.errors import InvalidInput, Refusal
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_activities.archive import Archive, ArchiveError, Head, ObjectDamaged, ObjectMissing, ThreadMismatch
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_queries import get_own_session, query_session
from clew_workflows.core.carried import carry, restore
from clew_workflows.protocol import ArchiveRef, Archiving, Packed, Recall, Recalled, Thaw, Thawed

MAX_RECALLED_BYTES = 1_500_000
"""Of one answer, as it is written to the history."""


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """Reads what is archived under a root, the newest entry first.

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
        """The entries of a kind, and of a lane where one is named, from `to_seq` down to `from_seq`."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        found = self.archive.read_back(self.family, self.root, from_seq, upto, kinds=frozenset({kind}))
        async for entry in found:
            if context_ref is None or entry.lane == context_ref:
                yield entry


class ArchiveActivities:
    """Writes the archive of sessions, and reads it for them."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    @activity.defn(name="archive")
    async def archive(self, asked: Archiving) -> ArchiveRef:
        """Write all entries that are not there yet, and then what the session goes on from. It may be repeated."""
        place, session_id = asked.archive, activity.info().workflow_id or ""
        session = get_own_session()
        async with send_heartbeats(), translate_archive_errors():
            whole = await query_session(session, "carried")
            entries = []
            seq = place.upto + 1
            while seq <= whole["last_seq"]:
                page = await query_session(session, "entries", {"from_seq": seq})
                entries += [Entry.from_json(row) for row in page["entries"] if row["seq"] <= whole["last_seq"]]
                seq = page.get("next_seq", whole["last_seq"] + 1)
            head, written = await self._written(place, session_id, entries)
            root = head.root if head else place.root
            root, upto = await self._archive.append(place.family, root, entries[written:])
            state = await self._archive.write_state(place.family, to_json(whole["carried"]))
            await self._archive.set_head(
                Head(
                    session_id=session_id,
                    family=place.family,
                    root=root,
                    last_seq=upto,
                    state=state,
                    status="closed" if asked.closed else "live",
                    run_id=place.execution,
                ),
                head,
            )
        return place.model_copy(update={"root": root, "upto": upto})

    async def _written(self, place: ArchiveRef, session_id: str, entries: list[Entry]) -> tuple[Head | None, int]:
        """The head to go on from, and how many of the entries are there already.

        An attempt before this one may have written the head although nobody was told so, and when it did the thread
        may have been shorter.

        Raises:
            ThreadMismatch: what is there is another execution's, or not what the session has said.
        """
        try:
            head = await self._archive.read_head(session_id)
        except ObjectDamaged:
            # Of use to nobody, and made good by the one that is written next.
            head = None
        if head is None:
            return None, 0
        if head.run_id == place.execution:
            if head.root == place.root:
                return head, 0
            there = self._archive.read(head.family, head.root, place.upto + 1)
            written = [entry async for entry in there]
            if written == entries[: len(written)]:
                return head, len(written)
        raise ThreadMismatch(f"the archive of {session_id!r} has been written by another execution")

    @activity.defn(name="thaw")
    async def thaw(self, asked: Thaw) -> Thawed:
        """What a session goes on from, and from now on its archive is this execution's."""
        place, session_id = asked.archive, activity.info().workflow_id or ""
        async with send_heartbeats(), translate_archive_errors():
            head = await self._archive.read_head(session_id)
            if head is None or head.state != asked.state:
                raise ThreadMismatch(f"the archive of {session_id!r} has changed meanwhile")
            carried = from_json(await self._archive.read_state(place.family, asked.state))
            try:
                begun = restore(carried)
            except InvalidInput as error:
                raise ThreadMismatch(f"the session was archived in another form: {error}") from error
            place = place.model_copy(update={"root": head.root, "upto": head.last_seq})
            last_seq = begun.thread.last_seq
            async for entry in self._archive.read(head.family, head.root, last_seq + 1):
                begun.thread.append(entry)
            if begun.thread.last_seq > last_seq:
                carried = carry(replace(begun, state=replace(begun.state, archive=place)))
            # Who forks a session that is away adds to its archive; if that was right now, there is more to be read.
            await self._archive.set_head(head.model_copy(update={"status": "live", "run_id": place.execution}), head)
        return Thawed(zlib=carried["zlib"], archive=place)

    @activity.defn(name="recall")
    async def recall(self, asked: Recall) -> Recalled:
        """The part of a lane that contexts need, as far as it fits into one answer, the newest first."""
        place = asked.archive
        async with send_heartbeats(), translate_archive_errors():
            back = ArchivedThread(self._archive, place.family, place.root, place.upto)
            part = await load_lane(back, asked.context_ref, asked.policies, asked.layers)
        return fit_answer(make_archived_thread(place.upto, part.entries, {asked.context_ref: part.gap}), asked)


def fit_answer(thread: Thread, asked: Recall) -> Recalled:
    """What a session is to keep of a lane, without what it holds already, small enough for one answer."""
    lane = asked.context_ref
    held = sum(
        len(to_json(entry.as_json()))
        for entry in thread.retained.entries
        if entry.kind == "ai_message" and entry.seq >= asked.before
    )
    room = 4 * MAX_RECALLED_BYTES
    while True:
        retained = retain(thread, thread.first_seq, {lane: asked.policies}, held + room)
        new = (entry for entry in retained.entries if entry.seq < asked.before or entry.kind != "ai_message")
        packed = Packed.pack(
            {
                "entries": [entry.as_json() for entry in new],
                "gap": asdict(retained.gaps[lane]),
            }
        )
        if len(packed.zlib) <= MAX_RECALLED_BYTES or room < 1000:
            return Recalled(packed=packed)
        room //= 2


@asynccontextmanager
async def translate_archive_errors(*, damage_is_final: bool = False) -> AsyncIterator[None]:
    """What is wrong with the archive, in words that travel; what may pass is tried again.

    A session that needs a damaged object waits for it to be restored; whoever only reads is told at once.
    """
    try:
        yield
    except Refusal as error:
        raise ApplicationError(error.message, type=error.type, non_retryable=True) from error
    except ArchiveError as error:
        word, final = "archive_unavailable", False
        if isinstance(error, ThreadMismatch):
            word, final = "thread_mismatch", True
        elif isinstance(error, ObjectDamaged | ObjectMissing):
            word, final = "archive_damaged", damage_is_final
        raise ApplicationError(str(error), type=word, non_retryable=final) from error
