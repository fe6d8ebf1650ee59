"""The activity `send_message`: sends a session a message of another workflow."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from clew.contract.calls import SEND_MESSAGE, SendMessageCall
from clew.errors import Closed, NotFound
from clew.session.transport import dump_input, make_input
from clew_activities.error_translation import translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_calls import connect, open_session


@activity.defn(name=SEND_MESSAGE)
async def send_message(argument: dict[str, Any]) -> dict[str, Any]:
    """Send the message, and answer when the session has accepted it. With a `request_id` it can be repeated."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(SendMessageCall, argument)
        message: Any = dump_input(call.message)
        try:
            request = await connect(call).session(call.session_id).message(**message)
        except (Closed, NotFound):
            session = await open_session(call, call.config)
            request = await session.message(**message)
    return {"request_id": request.request_id}
