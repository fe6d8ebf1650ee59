"""The activity `await_request`: waits for the end of a request for another workflow."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from clew.contract.calls import AWAIT_REQUEST, AwaitRequestCall, RequestAnswer
from clew.session.request import Request
from clew.session.transport import make_input
from clew_activities.error_translation import translate_refusals
from clew_activities.session_calls import connect, wait_with_heartbeats


@activity.defn(name=AWAIT_REQUEST)
async def await_request(argument: dict[str, Any]) -> dict[str, Any]:
    """Wait for the request, at most `wait_seconds`, and answer its outcome and its text."""
    async with translate_refusals():
        call = make_input(AwaitRequestCall, argument)
        request = connect(call).session(call.session_id).request(call.request_id)
        answer = await wait_with_heartbeats(_read_answer(request), call.wait_seconds)
    return (answer or RequestAnswer()).as_dict()


async def _read_answer(request: Request) -> RequestAnswer:
    outcome = await request.result()
    has_answer = outcome.status == "completed" and outcome.answer_seq is not None
    return RequestAnswer(outcome=outcome, text=await request.answer() if has_answer else None)
