"""Converting failed activities to failures of the protocol."""

from __future__ import annotations

from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType

from clew_workflows.protocol import Failure

MAX_MESSAGE_CHARACTERS = 2000
"""Characters of a failure's message. It is stored in the `error` entry and in the outcome."""

_OUT_OF_TIME = (TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.SCHEDULE_TO_START)


def make_failure(error: ActivityError) -> Failure:
    """Make the failure of an activity. Its type is `timeout` if the time for all attempts was over."""
    cause = error.cause
    if isinstance(cause, exceptions.TimeoutError):
        if cause.type in _OUT_OF_TIME or error.retry_state == RetryState.TIMEOUT:
            return Failure(
                type="timeout", message=_describe_timeout(error, cause)[:MAX_MESSAGE_CHARACTERS], retryable=True
            )
        message = "the worker that carried it out was lost, and so was each one after it"
        return Failure(type="worker_lost", message=message, retryable=True)
    if isinstance(cause, ApplicationError):
        if error.retry_state == RetryState.TIMEOUT:
            return Failure(
                type="timeout", message=f"{cause.type}: {cause.message}"[:MAX_MESSAGE_CHARACTERS], retryable=True
            )
        details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
        return Failure(
            type=cause.type or "internal",
            message=cause.message[:MAX_MESSAGE_CHARACTERS],
            retryable=not cause.non_retryable,
            details=details,
        )
    return Failure(type="internal", message=str(cause or error)[:MAX_MESSAGE_CHARACTERS])


def _describe_timeout(error: ActivityError, cause: exceptions.TimeoutError) -> str:
    """Describe a timeout: how the attempt before it failed, or what the last heartbeat reported."""
    last = cause.last_heartbeat_details[0] if cause.last_heartbeat_details else None
    heartbeat = last if isinstance(last, dict) else {}
    if cause.__cause__ is not None:
        return f"the last attempt failed: {cause.__cause__}"
    # The heartbeats of tools differ, and those of remote tools may hold anything.
    if "call_id" in heartbeat and "tool_call_id" not in heartbeat:
        offset, text = heartbeat.get("offset", 0), heartbeat.get("text", "")
        if isinstance(offset, int) and isinstance(text, str) and offset + len(text):
            return f"the reply was being streamed, {offset + len(text)} characters had arrived"
        return "the model had not begun to reply"
    if not error.started_event_id and not heartbeat:
        return "no worker took up the work in time"
    return "the work was under way"
