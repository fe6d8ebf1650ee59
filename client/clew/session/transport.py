"""Validate inputs before they are sent, limit waits, and translate Temporal's errors."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from temporalio import exceptions
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.agents import Agent
from clew.tools import ExternalTool, ToolDefinition
from clew_workflows.contract.errors import (
    AlreadyAnswered,
    AlreadyResolved,
    CallEnded,
    ClewError,
    Closed,
    Idle,
    Interrupted,
    InvalidInput,
    NotFound,
    NothingToSummarize,
    ServerUnreachable,
    TooLarge,
    UnknownApproval,
    UnknownKey,
    UnknownToolCall,
    WorkerUnavailable,
    make_error,
    make_refusal,
)
from clew_workflows.contract.limits import MAX_MESSAGE_BYTES
from clew_workflows.contract.validation import translate_validation_error
from clew_workflows.temporal_faults.cancelled_calls import keep_cancellations
from clew_workflows.temporal_faults.refused_updates import raise_refusal
from clew_workflows.temporal_faults.updates_in_flight import MAX_AWAITING, UpdateSlots, find_slots

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

INTERRUPTED = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)
"""Statuses of a workflow that has ended without archiving its last entries."""
DONE_BEFORE = frozenset(
    error.type
    for error in (
        AlreadyAnswered,
        AlreadyResolved,
        CallEnded,
        Idle,
        NothingToSummarize,
        UnknownApproval,
        UnknownToolCall,
    )
)
"""The refusals of a command that the session may have carried out before."""
ROLLOVER_SECONDS = 0.02
"""Seconds until an update is sent again for the first time that arrived during a rollover."""
ANSWER_SECONDS = 15.0
"""Seconds for which the call that sends an update waits for its answer, too."""
ACCEPT_SECONDS = 60
"""Seconds within which a worker must accept an update."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""The longest pauses before an update is sent again that the server had no room for."""


def make_input(model: type[M], fields: Mapping[str, Any]) -> M:
    """Make an input of the contract from its fields. A field that is None is left out.

    Raises:
        InvalidInput: A field is unknown, missing or not valid.
        InvalidOperation: The context operation is malformed.
    """
    values = drop_absent(fields)
    if isinstance(tools := values.get("external_tools"), list | tuple):
        values["external_tools"] = [_describe(tool) if isinstance(tool, ExternalTool) else tool for tool in tools]
    try:
        # Validate the JSON form, which the session receives: lists become tuples, mappings become objects.
        return model.model_validate_json(json.dumps(values, default=_make_plain))
    except ValidationError as error:
        raise translate_validation_error(model, error) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot be written as JSON: {error}") from None


def drop_absent(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _describe(tool: ExternalTool) -> dict[str, Any]:
    """Describe a tool of the caller's own, which no worker need have (`ExternalToolSpec`)."""
    settings = {"timeout_seconds": tool.timeout_seconds, "requires_approval": tool.requires_approval}
    return {**tool.spec, **settings}


def dump_input(model: BaseModel) -> dict[str, Any]:
    """Make the JSON object of an input: the fields that are set."""
    return model.model_dump(mode="json", exclude_unset=True)


def check_input(model: M) -> M:
    """Return an input if it is not larger than sessions take, which they would say after it has come to a worker.

    Raises:
        TooLarge: It is.
    """
    size = len(to_json(dump_input(model)))
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(f"the input has {size} bytes, at most {MAX_MESSAGE_BYTES} are taken")
    return model


def translate_error(error: RPCError, session_id: str) -> ClewError:
    """Make the Clew error for an error of Temporal's service."""
    match error.status:
        case _ if lacks_namespace(error):
            return ServerUnreachable(f"the Temporal server has no such namespace: {error.message}")
        case RPCStatusCode.NOT_FOUND if is_rollover(error):
            return Closed(f"session {session_id!r} has ended")
        case _ if is_unknown(error):
            return NotFound(f"there is no session {session_id!r}")
        case RPCStatusCode.UNAVAILABLE:
            return ServerUnreachable(f"the Temporal server does not answer: {error.message}")
        case RPCStatusCode.RESOURCE_EXHAUSTED if "query buffer" in error.message:
            return WorkerUnavailable(f"no worker has answered yet for session {session_id!r}: {error.message}")
        case RPCStatusCode.DEADLINE_EXCEEDED | RPCStatusCode.FAILED_PRECONDITION | RPCStatusCode.CANCELLED:
            return WorkerUnavailable(f"no worker answers for session {session_id!r}: {error.message}")
        case RPCStatusCode.INTERNAL | RPCStatusCode.UNKNOWN | RPCStatusCode.ABORTED | RPCStatusCode.DATA_LOSS:
            return ClewError(f"the call to the Temporal server failed, it may have been carried out: {error.message}")
        case _:
            return ClewError(f"the Temporal server refused the call: {error.message}")


def lacks_namespace(error: RPCError) -> bool:
    """Whether the server does not know the namespace. One that starts knows none for a moment."""
    return error.status == RPCStatusCode.NOT_FOUND and error.message.startswith("Namespace")


def is_unknown(error: RPCError) -> bool:
    """Whether the server does not know a workflow, or deletes it: its history goes before its record."""
    is_deleted = error.status == RPCStatusCode.INVALID_ARGUMENT and "workflow history not found" in error.message
    return is_deleted or error.status == RPCStatusCode.NOT_FOUND


def make_interrupted(session_id: str) -> Interrupted:
    """Make the error for a session whose workflow has ended without archiving its last entries."""
    return Interrupted(
        f"session {session_id!r} was interrupted, its workflow was terminated or has timed out: `clew recover "
        f"{session_id}` repairs it"
    )


def is_rollover(error: RPCError) -> bool:
    """Whether an update failed because the session's workflow run has ended, or ends: the session may roll over.

    Or the server refuses updates of the session because its workflow tasks fail.
    """
    ends = ("already completed", "aborted by closing workflow")
    return error.status == RPCStatusCode.FAILED_PRECONDITION or any(end in error.message for end in ends)


def is_overload(error: RPCError) -> bool:
    """Whether the server had no room for an update: it takes a number of a session's updates at the same time."""
    is_aborted = "update was aborted" in error.message and not is_rollover(error)
    return error.status == RPCStatusCode.RESOURCE_EXHAUSTED or is_aborted


def is_unprocessed(error: WorkflowUpdateFailedError) -> bool:
    """Whether the server refused an update, because a paused worker completed its task without it."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == "UnprocessedUpdate"


@asynccontextmanager
async def translate_errors(session_id: str, seconds: float | None = None) -> AsyncIterator[None]:
    """Translate Temporal's errors to Clew's errors. With `seconds`, the body must end within that time."""
    try:
        async with asyncio.timeout(seconds):
            with keep_cancellations():
                yield
    except (WorkflowUpdateFailedError, WorkflowFailureError) as error:
        raise _translate_failure(error.cause, session_id) from error
    except WorkflowQueryFailedError as error:
        word, _, message = error.message.partition(": ")
        is_refusal = bool(message) and word.replace("_", "").isalpha()
        raise (make_refusal(word, message) if is_refusal else ClewError(error.message)) from error
    except WorkflowQueryRejectedError as error:
        if error.status in INTERRUPTED:
            raise make_interrupted(session_id) from error
        raise Closed(f"session {session_id!r} has ended") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise WorkerUnavailable(f"no worker answers for session {session_id!r}") from error
    except TimeoutError as error:
        message = f"no worker accepted the update for session {session_id!r}: start one and repeat with the same id"
        raise WorkerUnavailable(message) from error
    except RPCError as error:
        raise translate_error(error, session_id) from error
    except KeyError as error:
        if not str(error.args[0]).startswith("Unknown payload encoding"):
            raise
        raise UnknownKey(
            f"session {session_id!r} is encrypted with a codec that this process lacks: set CLEW_ENCRYPTION_CODEC"
        ) from error


def _translate_failure(cause: BaseException | None, session_id: str) -> ClewError:
    """Make the Clew error for the failure of an update or of a workflow."""
    match cause:
        case exceptions.TimeoutError():
            return WorkerUnavailable(f"no worker has run the service workflow for session {session_id!r}: start one")
        case ApplicationError(type="AcceptedUpdateCompletedWorkflow"):
            # The server's own word: the workflow has ended without answering.
            return Closed(f"session {session_id!r} has ended")
        case ApplicationError(type=str() as word) if word:
            return make_error(word, cause.message)
        case _:
            return ClewError(str(cause))


class Pauses:
    """Pauses between repetitions, each twice as long as the one before.

    Attributes:
        next_seconds: The length of the next one.
        seconds: The length of all so far.
    """

    def __init__(self, first: float, longest: float, *, is_random: bool = False) -> None:
        """Begin with the shortest pause.

        Args:
            first: The length of the first one, in seconds.
            longest: The length of the longest one, in seconds.
            is_random: Each is shorter at random, by up to a half: callers that came at the same time must not come
                again at the same time.
        """
        self.next_seconds, self.seconds = first, 0.0
        self._longest, self._is_random = longest, is_random

    async def wait(self) -> None:
        """Wait for the length of the next pause."""
        pause = self.next_seconds * (random.uniform(0.5, 1.0) if self._is_random else 1.0)
        self.seconds += pause
        self.next_seconds = min(2 * self.next_seconds, self._longest)
        await asyncio.sleep(pause)


async def send_update(
    client: Client, session_id: str, name: str, argument: BaseModel, update_id: str, *, awaits_answer: bool = False
) -> WorkflowUpdateHandle[dict[str, Any]]:
    """Send an update and return when it is accepted; with `awaits_answer` later, if the answer comes soon.

    Raises:
        Refusal: The session refused it. Nothing has changed.
        WorkerUnavailable: No worker accepted it in time, or too many updates of the session wait. It may be accepted
            yet.
    """
    handle, slots = client.get_workflow_handle(session_id), find_slots(client, session_id)
    pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, is_random=True)
    # Longer ones, too: the server refuses updates in the same words while the tasks of the workflow fail.
    rollover_pauses = Pauses(ROLLOVER_SECONDS, LONGEST_PAUSE_SECONDS, is_random=True)
    start = partial(handle.start_update, name, dump_input(argument), id=update_id, result_type=dict)
    try:
        async with translate_errors(session_id, ACCEPT_SECONDS):
            while True:
                try:
                    update = await _start_update(start, slots, awaits_answer=awaits_answer)
                    return await _raise_refusal(client, update)
                except WorkflowUpdateFailedError as error:
                    if not is_unprocessed(error):
                        raise
                except RPCError as error:
                    if is_overload(error):
                        await pauses.wait()
                        continue
                    # Send it again to the next workflow run, if there is one.
                    running = WorkflowExecutionStatus.RUNNING
                    if not is_rollover(error) or (await handle.describe()).status != running:
                        raise
                await rollover_pauses.wait()
    except WorkerUnavailable as error:
        if not pauses.seconds:
            raise
        raise _make_overloaded(session_id) from error


async def _raise_refusal(
    client: Client, update: WorkflowUpdateHandle[dict[str, Any]]
) -> WorkflowUpdateHandle[dict[str, Any]]:
    """Raise the refusal of an update, unless the session has carried the update out before.

    Returns:
        The update; instead of a refused one that of the same id in the workflow run before, if it was carried out.
    """
    try:
        await raise_refusal(update)
    except WorkflowUpdateFailedError as error:
        is_done = isinstance(error.cause, ApplicationError) and error.cause.type in DONE_BEFORE
        earlier = await _find_earlier(client, update) if is_done else None
        if earlier is None:
            raise
        return earlier
    return update


async def _find_earlier(
    client: Client, update: WorkflowUpdateHandle[dict[str, Any]]
) -> WorkflowUpdateHandle[dict[str, Any]] | None:
    """Find the update of the same id in the workflow run before; None: it was not carried out there.

    If the answer of the server is lost the SDK sends an update again, to the next run if there is one.
    """
    run = WorkflowExecution(workflow_id=update.workflow_id, run_id=update.workflow_run_id or "")
    request = GetWorkflowExecutionHistoryRequest(namespace=client.namespace, execution=run, maximum_page_size=1)
    try:
        page = await client.workflow_service.get_workflow_execution_history(request, retry=True)
        started = page.history.events[0].workflow_execution_started_event_attributes
        if not started.continued_execution_run_id:
            return None
        before = client.get_workflow_handle(update.workflow_id, run_id=started.continued_execution_run_id)
        earlier = before.get_update_handle(update.id, result_type=dict)
        await earlier.result()
    except (RPCError, WorkflowUpdateFailedError):
        return None
    return earlier


async def read_answer(session_id: str, update: WorkflowUpdateHandle[dict[str, Any]]) -> dict[str, Any]:
    """Wait for the answer to an update that was accepted, for as long as it takes.

    Raises:
        Refusal: The session refused it. Nothing has changed.
        WorkerUnavailable: The server has not said it for `ACCEPT_SECONDS`: too many updates of the session wait.
    """
    pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, is_random=True)
    async with translate_errors(session_id):
        while True:
            try:
                return await update.result()
            except RPCError as error:
                if not is_overload(error):
                    raise
                if pauses.seconds > ACCEPT_SECONDS:
                    raise _make_overloaded(session_id) from error
            await pauses.wait()


def _make_overloaded(session_id: str) -> WorkerUnavailable:
    return WorkerUnavailable(
        f"too many updates of session {session_id!r} wait at the same time: send it again later, with the same id"
    )


async def _start_update(
    start: Callable[..., Awaitable[WorkflowUpdateHandle[dict[str, Any]]]], slots: UpdateSlots, *, awaits_answer: bool
) -> WorkflowUpdateHandle[dict[str, Any]]:
    """Start an update. One call to the server brings an answer that comes soon, otherwise another one asks for it."""
    if awaits_answer and slots.awaiting < MAX_AWAITING:
        slots.awaiting += 1
        try:
            # A server that closes the connection cancels the call, too.
            with suppress(TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    with keep_cancellations():
                        return await start(wait_for_stage=WorkflowUpdateStage.COMPLETED)
        finally:
            slots.awaiting -= 1
    async with slots.sending:
        return await start(wait_for_stage=WorkflowUpdateStage.ACCEPTED)


def _make_plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return dump_input(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Agent, ToolDefinition)):
        # A session names them; its workers have them.
        return value.name
    if inspect.isroutine(value):
        raise TypeError(f"{value.__qualname__} is a function: decorate it with clew.tool")
    raise TypeError(f"{type(value).__name__} is not JSON")
