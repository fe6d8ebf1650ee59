"""The archive's activities: `archive` writes a session to its archive, `thaw` and `recall` read it back."""

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
"""Largest answer of `recall`, in bytes as it is written to the history."""


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
                yield entry


class ArchiveActivities:
    """Writes the archive of sessions and reads it for them."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    @activity.defn(name="archive")
    async def archive(self, request: Archiving) -> ArchiveRef:
        """Write all entries that are not archived yet, then the session's state. It can be repeated."""
        archive_ref, session_id = request.archive, activity.info().workflow_id or ""
        session = get_own_session()
        async with send_heartbeats(), translate_archive_errors():
            answer = await query_session(session, "carried")
            entries = []
            seq = archive_ref.upto + 1
            while seq <= answer["last_seq"]:
                page = await query_session(session, "entries", {"from_seq": seq})
                entries += [Entry.from_json(row) for row in page["entries"] if row["seq"] <= answer["last_seq"]]
                seq = page.get("next_seq", answer["last_seq"] + 1)
            head, written = await self._find_written(archive_ref, session_id, entries)
            root = head.root if head else archive_ref.root
            root, upto = await self._archive.append(archive_ref.family, root, entries[written:])
            state = await self._archive.write_state(archive_ref.family, to_json(answer["carried"]))
            await self._archive.set_head(
                Head(
                    session_id=session_id,
                    family=archive_ref.family,
                    root=root,
                    last_seq=upto,
                    state=state,
                    status="closed" if request.closed else "live",
                    run_id=archive_ref.execution,
                ),
                head,
            )
        return archive_ref.model_copy(update={"root": root, "upto": upto})

    async def _find_written(
        self, archive_ref: ArchiveRef, session_id: str, entries: list[Entry]
    ) -> tuple[Head | None, int]:
        """Find the head to continue from, and how many of the entries are archived already.

        An earlier attempt may have written the head although its answer was lost. The thread may have been shorter
        then.

        Raises:
            ThreadMismatch: another execution has written the archive, or it holds other entries than the session.
        """
        try:
            head = await self._archive.read_head(session_id)
        except ObjectDamaged:
            # A damaged head is replaced by the one that is written next.
            head = None
        if head is None:
            return None, 0
        if head.run_id == archive_ref.execution:
            if head.root == archive_ref.root:
                return head, 0
            archived = self._archive.read(head.family, head.root, archive_ref.upto + 1)
            written = [entry async for entry in archived]
            if written == entries[: len(written)]:
                return head, len(written)
        raise ThreadMismatch(f"the archive of session {session_id!r} was written by another workflow execution")

    @activity.defn(name="thaw")
    async def thaw(self, request: Thaw) -> Thawed:
        """Read the state that a session continues from, and make the session's archive this execution's."""
        archive_ref, session_id = request.archive, activity.info().workflow_id or ""
        async with send_heartbeats(), translate_archive_errors():
            head = await self._archive.read_head(session_id)
            if head is None or head.state != request.state:
                raise ThreadMismatch(f"the archive of session {session_id!r} was changed while the session started")
            carried = from_json(await self._archive.read_state(archive_ref.family, request.state))
            try:
                session = restore(carried)
            except InvalidInput as error:
                raise ThreadMismatch(
                    f"the archived state of session {session_id!r} cannot be read by this version of Clew: {error}"
                ) from error
            archive_ref = archive_ref.model_copy(update={"root": head.root, "upto": head.last_seq})
            last_seq = session.thread.last_seq
            async for entry in self._archive.read(head.family, head.root, last_seq + 1):
                session.thread.append(entry)
            if session.thread.last_seq > last_seq:
                carried = carry(replace(session, state=replace(session.state, archive=archive_ref)))
            # A fork of an archived session appends an entry to its archive. If one is appended right now, this
            # write fails with ObjectChanged, and the next attempt reads that entry too.
            await self._archive.set_head(
                head.model_copy(update={"status": "live", "run_id": archive_ref.execution}), head
            )
        return Thawed(zlib=carried["zlib"], archive=archive_ref)

    @activity.defn(name="recall")
    async def recall(self, request: Recall) -> Recalled:
        """Read the part of a lane that contexts need, the newest entries first, as many as one answer holds."""
        archive_ref = request.archive
        async with send_heartbeats(), translate_archive_errors():
            thread = ArchivedThread(self._archive, archive_ref.family, archive_ref.root, archive_ref.upto)
            part = await load_lane(thread, request.context_ref, request.policies, request.layers)
        return fit_answer(
            make_archived_thread(archive_ref.upto, part.entries, {request.context_ref: part.gap}), request
        )


def fit_answer(thread: Thread, request: Recall) -> Recalled:
    """Select the entries that a session retains of a lane and does not hold yet, small enough for one answer."""
    lane = request.context_ref
    held_bytes = sum(
        len(to_json(entry.as_json()))
        for entry in thread.retained.entries
        if entry.kind == "ai_message" and entry.seq >= request.before
    )
    room = 4 * MAX_RECALLED_BYTES
    while True:
        retained = retain(thread, thread.first_seq, {lane: request.policies}, held_bytes + room)
        new = (entry for entry in retained.entries if entry.seq < request.before or entry.kind != "ai_message")
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
    """Raise the archive's errors and refusals as application errors with their wire types.

    Errors that a retry may not meet are retryable. A damaged object is, too, for a session that waits until it is
    restored; a reader passes `damage_is_final` and fails at once.
    """
    try:
        yield
    except Refusal as error:
        raise ApplicationError(error.message, type=error.type, non_retryable=True) from error
    except ArchiveError as error:
        error_type, is_final = "archive_unavailable", False
        if isinstance(error, ThreadMismatch):
            error_type, is_final = "thread_mismatch", True
        elif isinstance(error, ObjectDamaged | ObjectMissing):
            error_type, is_final = "archive_damaged", damage_is_final
        raise ApplicationError(str(error), type=error_type, non_retryable=is_final) from error
