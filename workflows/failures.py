"""Failed activities as the session understands them."""

from __future__ import annotations

from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType

from workflows.effects import Failure

MAX_MESSAGE = 2000
"""Characters of a failure's message: it is stored with the error and again with the outcome."""

_OUT_OF_TIME = (TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.SCHEDULE_TO_START)


def failure_of(error: ActivityError) -> Failure:
    """Why an activity failed for good. `timeout` where the request's own time ran out."""
    cause = error.cause
    if isinstance(cause, exceptions.TimeoutError):
        if cause.type in _OUT_OF_TIME or error.retry_state == RetryState.TIMEOUT:
            last = cause.__cause__
            message = str(last or "no worker answered in time")[:MAX_MESSAGE]
            return Failure(type="timeout", message=message, retryable=True)
        message = "the worker that carried it out went away, and so did those after it"
        return Failure(type="worker_lost", message=message, retryable=True)
    if isinstance(cause, ApplicationError):
        if error.retry_state == RetryState.TIMEOUT:
            return Failure(type="timeout", message=f"{cause.type}: {cause.message}"[:MAX_MESSAGE], retryable=True)
        details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
        return Failure(
            type=cause.type or "internal",
            message=cause.message[:MAX_MESSAGE],
            retryable=not cause.non_retryable,
            details=details,
        )
    return Failure(type="internal", message=str(cause or error)[:MAX_MESSAGE])
