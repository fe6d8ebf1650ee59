"""Activities that write a session to the archive, and read it back.

`archive` writes entries and state, `thaw` reads the state that an archived session continues from, `recall` the
archived entries that its contexts need.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from pydantic_core import from_json, to_json
from temporalio import activity

from clew_activities.archive import Archive, Head, ObjectDamaged, ThreadMismatch
from clew_activities.archive.archive_errors import translate_archive_errors
from clew_activities.archive.archived_sessions import SearchAttributes
from clew_activities.archive.thread_source import ArchivedThread, check_entry, get_own_session, query_session
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.lists import SessionSummary
from clew_workflows.protocol import ArchiveRef, Archiving, Recall, Recalled, Thaw, Thawed, WrittenArchive
from clew_workflows.session.carried import carry, restore
from clew_workflows.thread.context.archived import load_lane, make_archived_thread, retain
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread
from clew_workflows.values import Packed

MAX_RECALLED_BYTES = 1_500_000
"""Largest answer of `recall`, in bytes as it is written to the history."""


class ArchiveActivities:
    """Writes and reads the archive of the session that an activity runs for."""

    def __init__(self, archive: Archive, search_attributes: SearchAttributes) -> None:
        self._archive = archive
        self._search_attributes = search_attributes

    @activity.defn(name="archive")
    async def archive(self, request: Archiving) -> WrittenArchive:
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
            head, root, written = await self._find_written(archive_ref, session_id, entries)
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
                    summary=SessionSummary.model_validate(answer["summary"]),
                ),
                head,
            )
            attributes = await self._search_attributes.list()
        archive_ref = archive_ref.model_copy(update={"root": root, "upto": upto})
        return WrittenArchive(archive=archive_ref, search_attributes=attributes)

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
                session.thread.append(check_entry(entry, archive_ref.family))
            if session.thread.last_seq > last_seq:
                carried = carry(replace(session, state=replace(session.state, archive=archive_ref)))
            # A fork of an archived session appends an entry to its archive. If one is appended right now, this
            # write fails with ObjectChanged, and the next attempt reads that entry too.
            await self._archive.set_head(
                head.model_copy(update={"status": "live", "run_id": archive_ref.execution}), head
            )
        return Thawed(version=carried["version"], zlib=carried["zlib"], archive=archive_ref)

    @activity.defn(name="recall")
    async def recall(self, request: Recall) -> Recalled:
        """Read the part of a lane that contexts need, the newest entries first, as many as one answer holds."""
        archive_ref = request.archive
        async with send_heartbeats(), translate_archive_errors():
            thread = ArchivedThread(self._archive, archive_ref.family, archive_ref.root, archive_ref.upto)
            part = await load_lane(thread, request.context_ref, request.policies, request.layers, request.before)
        return fit_answer(
            make_archived_thread(archive_ref.upto, part.entries, {request.context_ref: part.gap}), request
        )

    async def _find_written(
        self, archive_ref: ArchiveRef, session_id: str, entries: list[Entry]
    ) -> tuple[Head | None, str | None, int]:
        """Find the head to replace, the root to continue from, and how many of the entries are archived already.

        An earlier attempt may have written the head although its answer was lost. The thread may have been shorter
        then. A head that is older than the session knows is not continued: if the store shows an old one, it refuses
        to replace it; if it has lost a newer one, it takes the next.

        Raises:
            ThreadMismatch: Another execution has written the archive, or it holds other entries than the session.
        """
        try:
            head = await self._archive.read_head(session_id)
        except ObjectDamaged:
            # A damaged head is replaced by the one that is written next.
            head = None
        if head is None:
            return None, archive_ref.root, 0
        if head.run_id == archive_ref.execution:
            if head.last_seq <= archive_ref.upto:
                return head, archive_ref.root, 0
            archived = self._archive.read(head.family, head.root, archive_ref.upto + 1)
            written = [entry async for entry in archived]
            if written == entries[: len(written)]:
                return head, head.root, len(written)
        raise ThreadMismatch(f"the archive of session {session_id!r} was written by another workflow execution")


def fit_answer(thread: Thread, request: Recall) -> Recalled:
    """Select the entries that a session retains of a lane and does not hold yet, small enough for one answer.

    `thread`: the part of the lane that contexts need, with all messages that the session holds of it.
    """
    lane = request.context_ref
    held_bytes = sum(
        len(to_json(entry.as_dict()))
        for entry in thread.retained.entries
        if entry.kind == "ai_message" and entry.seq >= request.before
    )
    room = 4 * MAX_RECALLED_BYTES
    while True:
        retained = retain(
            thread, thread.first_seq, {lane: request.policies}, held_bytes + room, held_from=request.before
        )
        new = (entry for entry in retained.entries if entry.seq < request.before or entry.kind != "ai_message")
        packed = Packed.pack(
            {
                "entries": [entry.as_dict() for entry in new],
                "gap": asdict(retained.gaps[lane]),
            }
        )
        if len(packed.zlib) <= MAX_RECALLED_BYTES or room < 1000:
            return Recalled(packed=packed)
        room //= 2
