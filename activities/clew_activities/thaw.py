"""The activity `thaw`: reads the state that an archived session continues from."""

from __future__ import annotations

from dataclasses import replace

from pydantic_core import from_json
from temporalio import activity

from clew.errors import InvalidInput
from clew_activities.archive import Archive, ThreadMismatch
from clew_activities.archived_thread import check_entry
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_workflows.core.carried import carry, restore
from clew_workflows.protocol import Thaw, Thawed


class ThawActivities:
    """Reads the archived state of sessions."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

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
