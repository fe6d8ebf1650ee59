"""The activity `archive`: writes a session's entries and state to its archive."""

from __future__ import annotations

from pydantic_core import to_json
from temporalio import activity

from clew.contract.lists import SessionSummary
from clew.thread.entries import Entry
from clew_activities.archive import Archive, Head, ObjectDamaged, ThreadMismatch
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.search_attributes import SearchAttributes
from clew_activities.session_queries import get_own_session, query_session
from clew_workflows.protocol import ArchiveRef, Archiving, WrittenArchive


class ArchiveActivities:
    """Writes the archive of sessions."""

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
