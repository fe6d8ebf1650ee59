"""Converting failed activities to failures of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType

from clew.contract.outputs import ReplyProgress
from clew.errors import ArchiveDamaged
from clew_workflows.protocol import Failure, ModelAnswered, ModelStopped, describe_read

MAX_MESSAGE_CHARACTERS = 2000
"""Characters of a failure's message. It is stored in the `error` entry and in the outcome."""

LOST_BEGINNING = "[lost: the first {} characters of this reply]\n"
"""Precedes the text that was read of a reply, where its worker has left no more than the end of it."""

_OUT_OF_TIME = (TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.SCHEDULE_TO_START)


def make_failure(error: ActivityError) -> Failure:
    """Make the failure of an activity. Its type is `timeout` if the time for all attempts was over.

    If the last attempt had found the archive damaged, it is `archive_damaged`: no later attempt finds it whole, until
    someone has restored the object that the message names.
    """
    cause = error.cause
    last = cause.__cause__ if isinstance(cause, exceptions.TimeoutError) else cause
    if isinstance(last, ApplicationError) and last.type == ArchiveDamaged.type:
        return Failure(
            type=ArchiveDamaged.type,
            message=last.message[:MAX_MESSAGE_CHARACTERS],
            retryable=not last.non_retryable,
        )
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


def make_stopped(error: ActivityError) -> ModelStopped:
    """Make the end of a model call that has failed: with what was read of the reply, if anything.

    The worker has added it to the failure. Where no worker could, the last heartbeat has it.
    """
    cause, answer = error.cause, None
    if isinstance(cause, ApplicationError) and len(cause.details) > 1:
        answer = _parse_answer(cause.details[1])
    elif isinstance(cause, exceptions.TimeoutError):
        answer = _read_heartbeat(cause.last_heartbeat_details)
    return ModelStopped(failure=make_failure(error), answer=answer)


def _read_heartbeat(details: Sequence[Any]) -> ModelAnswered | None:
    """Read what was read of a reply from a heartbeat of `call_model`; None: the reply had not begun."""
    if len(details) < 2 or (answer := _parse_answer(details[1])) is None:
        return None
    try:
        progress = ReplyProgress.model_validate(details[0])
    except ValueError:
        return None
    text = LOST_BEGINNING.format(progress.offset) + progress.text if progress.offset else progress.text
    return answer.model_copy(update={"reply": answer.reply.model_copy(update={"content": text})})


def _parse_answer(value: object) -> ModelAnswered | None:
    try:
        return ModelAnswered.model_validate(value)
    except ValueError:
        return None


def _describe_timeout(error: ActivityError, cause: exceptions.TimeoutError) -> str:
    """Describe a timeout: how the attempt before it failed, or what the last heartbeat reported."""
    last = cause.last_heartbeat_details[0] if cause.last_heartbeat_details else None
    heartbeat = last if isinstance(last, dict) else {}
    if cause.__cause__ is not None:
        return f"the last attempt failed: {cause.__cause__}"
    # The heartbeats of tools differ, and those of remote tools may hold anything.
    if "call_id" in heartbeat and "tool_call_id" not in heartbeat:
        offset, text = heartbeat.get("offset", 0), heartbeat.get("text", "")
        return describe_read(offset + len(text) if isinstance(offset, int) and isinstance(text, str) else 0)
    if not error.started_event_id and not heartbeat:
        return "no worker took up the work in time"
    return "the work was under way"
