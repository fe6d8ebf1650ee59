"""Between the client and the wire: inputs are validated before they travel, Temporal's errors translated once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import exceptions
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.contract.refusals import translate_validation_error
from clew.errors import ClewError, Closed, InvalidInput, ServerUnreachable, WorkerUnavailable, make_refusal

M = TypeVar("M", bound=BaseModel)

ROLLOVER_SECONDS = 0.02
"""Seconds until an update is sent again that arrived at the end of a workflow run."""
ACCEPT_SECONDS = 60
"""Seconds that an update waits for a worker to accept it."""


def make_input(model: type[M], fields: Mapping[str, Any]) -> M:
    """The input of these fields; a field that is None is left out.

    Raises:
        InvalidInput: a field is unknown, missing or of another shape.
        InvalidOperation: the context operation in it is malformed.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    try:
        # Through JSON, as it will travel: lists are tuples there, and a mapping is an object.
        return model.model_validate_json(json.dumps(values, default=_make_plain))
    except ValidationError as error:
        raise translate_validation_error(model, error) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not usable as JSON: {error}") from None


def dump_input(model: BaseModel) -> dict[str, Any]:
    """The JSON object that travels for an input: the fields that were set."""
    return model.model_dump(mode="json", exclude_unset=True)


def translate_error(error: RPCError, session_id: str) -> ClewError:
    """Clew's error for one of Temporal's."""
    match error.status:
        case RPCStatusCode.NOT_FOUND if error.message.startswith("Namespace"):
            return ServerUnreachable(f"the Temporal server has no such namespace: {error.message}")
        case RPCStatusCode.NOT_FOUND:
            return Closed(f"there is no running session {session_id!r}: it has ended, or was never opened")
        case RPCStatusCode.UNAVAILABLE:
            return ServerUnreachable(f"the Temporal server does not answer: {error.message}")
        case RPCStatusCode.DEADLINE_EXCEEDED | RPCStatusCode.FAILED_PRECONDITION | RPCStatusCode.CANCELLED:
            return WorkerUnavailable(f"no worker answers for session {session_id!r}: {error.message}")
        case _:
            return ClewError(f"Temporal refused: {error.message}")


def is_rollover(error: RPCError) -> bool:
    """Whether an update arrived while one workflow run was continued as the next."""
    return error.status == RPCStatusCode.FAILED_PRECONDITION or "already completed" in error.message


def is_unprocessed(error: WorkflowUpdateFailedError) -> bool:
    """Whether the server itself refused an update, because a paused worker completed its task without it."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == "UnprocessedUpdate"


@asynccontextmanager
async def translate_errors(session_id: str, seconds: float | None = None) -> AsyncIterator[None]:
    """Translate Temporal's errors to Clew's, here and nowhere else. With `seconds`, the body has that much time."""
    try:
        async with asyncio.timeout(seconds):
            try:
                yield
            except Exception as error:
                # The SDK makes errors of its own of a cancellation; it stays the caller's, or the timeout's.
                task = asyncio.current_task()
                if task and task.cancelling():
                    raise asyncio.CancelledError from error
                raise
    except (WorkflowUpdateFailedError, WorkflowFailureError) as error:
        cause = error.cause
        if isinstance(cause, exceptions.TimeoutError):
            raise WorkerUnavailable(f"no worker took up what was asked about session {session_id!r}") from error
        if isinstance(cause, ApplicationError) and cause.type:
            raise make_refusal(cause.type, cause.message) from error
        raise ClewError(str(cause)) from error
    except WorkflowQueryFailedError as error:
        word, _, message = error.message.partition(": ")
        raise (make_refusal(word, message) if message else ClewError(error.message)) from error
    except WorkflowQueryRejectedError as error:
        raise Closed(f"session {session_id!r} has ended") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise WorkerUnavailable(f"no worker answers for session {session_id!r}") from error
    except TimeoutError as error:
        message = f"no worker took it for session {session_id!r}: send it again with the same id once one is there"
        raise WorkerUnavailable(message) from error
    except RPCError as error:
        raise translate_error(error, session_id) from error


async def send_update(
    handle: WorkflowHandle[Any, Any], name: str, argument: BaseModel, update_id: str
) -> WorkflowUpdateHandle[dict[str, Any]]:
    """Send an update of the contract; back as soon as it is accepted.

    Raises:
        Refusal: the session refused it, and nothing has changed.
        WorkerUnavailable: no worker accepted it in time.
    """
    async with translate_errors(handle.id, ACCEPT_SECONDS):
        while True:
            try:
                update = await handle.start_update(
                    name,
                    dump_input(argument),
                    id=update_id,
                    wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                    result_type=dict,
                )
                # A refused update counts as complete, and the SDK raises its error only from `result`.
                if update._known_outcome is not None:
                    await update.result()
                return update
            except WorkflowUpdateFailedError as error:
                if not is_unprocessed(error):
                    raise
            except RPCError as error:
                # It arrived at the end of a workflow run: send it again to the next one, if there is one.
                running = WorkflowExecutionStatus.RUNNING
                if not is_rollover(error) or (await handle.describe()).status != running:
                    raise
            await asyncio.sleep(ROLLOVER_SECONDS)


def _make_plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return dump_input(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
