"""The activity `open_session`: starts or resumes a session for another workflow."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from clew.contract.calls import OPEN_SESSION, OpenSessionCall
from clew.session.transport import make_input
from clew_activities.error_translation import translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_calls import open_session as open_called_session


@activity.defn(name=OPEN_SESSION)
async def open_session(argument: dict[str, Any]) -> dict[str, Any]:
    """Open the session. It can be repeated. Answers the fields that an existing session has other values of."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(OpenSessionCall, argument)
        session = await open_called_session(call, call.config)
    return {"ignored": dict(session.ignored)}
