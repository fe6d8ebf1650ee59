"""The activity `archive`: writes a session's entries and state to its archive."""

from __future__ import annotations

from pydantic_core import to_json
from temporalio import activity

from clew.thread.entries import Entry
from clew_activities.archive import Archive, Head, ObjectDamaged, ThreadMismatch
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_queries import get_own_session, query_session
from clew_workflows.protocol import ArchiveRef, Archiving


class ArchiveActivities:
    """Writes the archive of sessions."""

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
            ThreadMismatch: Another execution has written the archive, or it holds other entries than the session.
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
