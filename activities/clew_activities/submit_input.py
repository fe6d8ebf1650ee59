"""The activity `submit_input`: sends the active run of a session an input of another workflow."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from clew.contract.calls import SUBMIT_INPUT, SubmitInputCall
from clew.session.transport import dump_input, make_input
from clew_activities.error_translation import translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_calls import connect


@activity.defn(name=SUBMIT_INPUT)
async def submit_input(argument: dict[str, Any]) -> dict[str, Any]:
    """Send the input and answer the receipt. With an `input_id` it can be repeated."""
    async with send_heartbeats(), translate_refusals():
        call = make_input(SubmitInputCall, argument)
        fields: Any = dump_input(call.input)
        session = connect(call).session(call.session_id)
        send = session.steer if fields.pop("kind") == "steer" else session.inject
        return (await send(**fields)).as_dict()
