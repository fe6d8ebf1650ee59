"""The activity `recall`: reads the archived entries that a session's contexts need."""

from __future__ import annotations

from dataclasses import asdict

from pydantic_core import to_json
from temporalio import activity

from clew.context.loading import load_lane, make_archived_thread
from clew.context.retention import retain
from clew.thread.thread import Thread
from clew_activities.archive import Archive
from clew_activities.archived_thread import ArchivedThread
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_workflows.protocol import Packed, Recall, Recalled

MAX_RECALLED_BYTES = 1_500_000
"""Largest answer of `recall`, in bytes as it is written to the history."""


class RecallActivities:
    """Reads the archived entries of sessions."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

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
        len(to_json(entry.as_dict()))
        for entry in thread.retained.entries
        if entry.kind == "ai_message" and entry.seq >= request.before
    )
    room = 4 * MAX_RECALLED_BYTES
    while True:
        retained = retain(thread, thread.first_seq, {lane: request.policies}, held_bytes + room)
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
