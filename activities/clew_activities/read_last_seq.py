"""The activity `read_last_seq`: reads the seq of a session's newest entry for another workflow."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from clew.contract.calls import READ_LAST_SEQ, SessionCall
from clew.errors import NotFound
from clew.session.transport import make_input
from clew_activities.error_translation import translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_calls import connect


@activity.defn(name=READ_LAST_SEQ)
async def read_last_seq(argument: dict[str, Any]) -> dict[str, Any]:
    """Read the seq, of a session that is running or archived."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(SessionCall, argument)
        async for entry in connect(call).read_thread(call.session_id, newest=1):
            return {"last_seq": entry.seq}
        raise NotFound(f"session {call.session_id!r} has no entries")
