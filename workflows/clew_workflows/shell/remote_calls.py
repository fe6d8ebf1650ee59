"""Remote calls: the result or the failure of another worker's activity, whatever it is."""

from __future__ import annotations

import asyncio

from temporalio import exceptions, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception

from clew_workflows.core.remote_results import make_answer
from clew_workflows.protocol import Failure, PlannedCall, ToolAnswered, ToolReturned
from clew_workflows.shell.failures import MAX_MESSAGE_CHARACTERS, make_failure


async def await_remote_result(
    planned: PlannedCall, activity: workflow.ActivityHandle[RawValue | None]
) -> ToolReturned:
    """Wait for a remote call; return its answer or its failure, neither if it was cancelled."""
    call = planned.call
    try:
        value = await activity
    except asyncio.CancelledError:
        return ToolReturned(tool_call_id=call.tool_call_id)
    except ActivityError as error:
        return _make_failed(planned, error)
    # The SDK answers None for an activity that has completed without a payload.
    payload = Payload(metadata={"encoding": b"binary/null"}) if value is None else value.payload
    encoding = payload.metadata.get("encoding", b"").decode("utf-8", "replace")
    answer = make_answer(encoding, payload.data, call.max_result_bytes)
    return ToolReturned(tool_call_id=call.tool_call_id, answer=answer)


def _make_failed(planned: PlannedCall, error: ActivityError) -> ToolReturned:
    tool_call_id, cause = planned.call.tool_call_id, error.cause
    if is_cancelled_exception(error):
        return ToolReturned(tool_call_id=tool_call_id)
    if isinstance(cause, ApplicationError):
        # The activity itself says how the call ended: it is not in doubt.
        reason = f"{cause.type}: {cause.message}" if cause.type else cause.message
        answer = ToolAnswered(content=f"error: {reason}"[:MAX_MESSAGE_CHARACTERS], is_error=True)
        return ToolReturned(tool_call_id=tool_call_id, answer=answer)
    failure = make_failure(error)
    if (
        isinstance(cause, exceptions.TimeoutError)
        and cause.type == TimeoutType.START_TO_CLOSE
        and failure.type != "timeout"
    ):
        message = f"it took longer than {planned.tool.timeout_seconds:g} seconds"
        failure = Failure(type="tool_timeout", message=message, retryable=True)
    return ToolReturned(tool_call_id=tool_call_id, failure=failure)
