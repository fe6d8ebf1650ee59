"""Sessions for a team's own workflows: durable calls, made of activities that Clew's workers run.

    with workflow.unsafe.imports_passed_through():
        from clew import workflow as sessions

    answer = await sessions.ask("support-4711", "Where is my order?", agent="support")

The calls need a Clew worker on the sessions' task queue, on any machine; the calling worker needs only the package
`clew`. Each call survives the deaths of both. It is not limited in time: use `timeout_seconds` of the message, or
`asyncio.wait_for`. If the calling workflow is cancelled, so is the request.

The errors are those of the Python client. One that a workflow does not catch fails it, with the error's word as type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TemporalError,
    is_cancelled_exception,
)

from clew.session.keywords import InputOptions, MessageOptions, SessionOptions
from clew.session.transport import drop_absent, dump_input, make_input
from clew_workflows.contract import (
    FORK_WORKFLOW,
    TASK_QUEUE,
    CancelInput,
    ForkSessionInput,
    MessageInput,
    SubmitInput,
)
from clew_workflows.contract.calls import (
    AWAIT_REQUEST,
    OPEN_SESSION,
    READ_LAST_SEQ,
    SEND_MESSAGE,
    SUBMIT_INPUT,
    AwaitRequestCall,
    OpenSessionCall,
    RequestAnswer,
    SendMessageCall,
    SessionCall,
    SubmitInputCall,
)
from clew_workflows.contract.errors import ClewError, RequestFailed, make_error
from clew_workflows.contract.names import name_caller_queue, name_fork
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.outputs import InputReceipt

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

WAIT_SECONDS = 600
"""Longest time that one activity waits for a request, in seconds. Then the workflow starts the next one."""
CALL_TIMEOUT = timedelta(minutes=2)
"""The time of one attempt to reach a session."""
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=15))


_FAILING: dict[type[ClewError], Any] = {}


class CallOptions(MessageOptions, total=False):
    """Options of `ask` and `message`: those of a message, and of a session that does not run, which is opened.

    Attributes:
        agent: The agent of a new session.
        config: The other fields of the configuration of a new session.
        task_queue: The sessions' task queue.
    """

    agent: str | None
    config: SessionOptions | None
    task_queue: str


async def open(  # noqa: A001 - as the client's method
    session_id: str, *, task_queue: str = TASK_QUEUE, **config: Unpack[SessionOptions]
) -> dict[str, Any]:
    """Start a session with this configuration, or resume it with its own.

    Returns:
        The fields of this call whose value differs in a session that exists, with the values in force.

    Raises:
        Refusal: The configuration is not valid, or the session cannot be opened.
    """
    fields = {"session_id": session_id, "task_queue": task_queue, "config": drop_absent(config)}
    answer = await _call(OPEN_SESSION, _make(OpenSessionCall, fields))
    ignored: dict[str, Any] = answer["ignored"]
    return ignored


@overload
async def ask(session_id: str, content: str, *, answer: None = None, **options: Unpack[CallOptions]) -> str: ...


@overload
async def ask(session_id: str, content: str, *, answer: type[M], **options: Unpack[CallOptions]) -> M: ...


async def ask(
    session_id: str, content: str, *, answer: type[M] | None = None, **options: Unpack[CallOptions]
) -> str | M:
    """Send a message and wait for the answer.

    Args:
        session_id: The session. If it does not run it is opened, with `agent` and `config`.
        content: The message.
        answer: A pydantic model. The answer must meet its JSON Schema and is returned as an instance.
        options: Options of the message and of a new session. Without a `request_id` the workflow makes one.

    Raises:
        RequestFailed: The request ended without an answer.
        Refusal: The session refused the message. Nothing has changed.
    """
    if answer is not None:
        options = {**options, "output_schema": answer.model_json_schema()}
    outcome, text = await _carry_out(_make_message(session_id, content, options))
    if outcome.status != "completed" or text is None:
        raise _make_failure(RequestFailed(outcome))
    return text if answer is None else answer.model_validate_json(text)


async def message(session_id: str, content: str, **options: Unpack[CallOptions]) -> RequestOutcome:
    """Send a message and wait for its outcome: completed, failed or cancelled. Otherwise the same as `ask`.

    Raises:
        Refusal: The session refused the message. Nothing has changed.
    """
    outcome, _ = await _carry_out(_make_message(session_id, content, options))
    return outcome


async def steer(
    session_id: str, content: str, *, task_queue: str = TASK_QUEUE, **options: Unpack[InputOptions]
) -> InputReceipt:
    """Send the active run a correction. Without an `input_id` the workflow makes one.

    Raises:
        Idle: No request is active or waits.
        RequestMismatch: Another request than `expected_request_id` is active.
        Refusal: The session refused it for another reason.
    """
    fields = {"input_id": _make_id(), **drop_absent(options), "kind": "steer", "content": content}
    call = {"session_id": session_id, "task_queue": task_queue, "input": dump_input(_make(SubmitInput, fields))}
    return InputReceipt.model_validate(await _call(SUBMIT_INPUT, _make(SubmitInputCall, call)))


async def fork(
    session_id: str,
    at_seq: int | None = None,
    new_session_id: str | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    task_queue: str = TASK_QUEUE,
) -> str:
    """Start a new session that begins with another session's entries, and return its id.

    Args:
        session_id: The session to fork.
        at_seq: The last entry that both have; None: the newest.
        new_session_id: The id of the fork; None: the workflow makes one.
        metadata: Strings that are stored with the `fork` entries.
        task_queue: The sessions' task queue.

    Raises:
        InvalidInput: There is no such entry, or another session has this id.
        NotFound: There is no such session.
    """
    new_session_id = new_session_id or name_fork(session_id, workflow.uuid4().hex)
    if at_seq is None:
        newest = await _call(READ_LAST_SEQ, _make(SessionCall, {"session_id": session_id, "task_queue": task_queue}))
        at_seq = newest["last_seq"]
    fields = {"session_id": session_id, "at_seq": at_seq, "new_session_id": new_session_id, "metadata": metadata}
    forked = workflow.execute_child_workflow(
        FORK_WORKFLOW,
        dump_input(_make(ForkSessionInput, fields)),
        id=f"fork-{new_session_id}-{workflow.uuid4().hex}",
        task_queue=task_queue,
        result_type=dict,
    )
    receipt = await _translate_errors(forked)
    return str(receipt["session_id"])


def _make_id() -> str:
    """Make the id of a request or an input, as short as the client's."""
    return workflow.uuid4().hex[:16]


def _make_message(session_id: str, content: str, options: CallOptions) -> SendMessageCall:
    fields = {"request_id": _make_id(), **drop_absent(options), "content": content}
    config = {**fields.pop("config", {}), "agent": fields.pop("agent", None)}
    call = {
        "session_id": session_id,
        "task_queue": fields.pop("task_queue", TASK_QUEUE),
        "config": drop_absent(config),
        "message": dump_input(_make(MessageInput, fields)),
    }
    return _make(SendMessageCall, call)


async def _carry_out(call: SendMessageCall) -> tuple[RequestOutcome, str | None]:
    """Send a message and wait until its request ends; cancel the request if this workflow is cancelled."""
    request_id = call.message.request_id or ""
    waiting = {"session_id": call.session_id, "task_queue": call.task_queue, "request_id": request_id}
    try:
        await _call(SEND_MESSAGE, call)
        while True:
            step = _make(AwaitRequestCall, {**waiting, "wait_seconds": WAIT_SECONDS})
            answer = RequestAnswer.model_validate(await _call(AWAIT_REQUEST, step, WAIT_SECONDS))
            if answer.outcome is not None:
                return answer.outcome, answer.text
    except (asyncio.CancelledError, TemporalError) as error:
        if is_cancelled_exception(error):
            await _cancel_request(call.session_id, request_id)
        raise


async def _cancel_request(session_id: str, request_id: str) -> None:
    """Cancel the request by a signal, which needs no worker. A session that has ended has no request."""
    command = CancelInput(request_id=request_id, reason=f"the workflow {workflow.info().workflow_id} was cancelled")
    session = workflow.get_external_workflow_handle(session_id)
    try:
        await session.signal("cancel", dump_input(command))
    except ApplicationError:
        workflow.logger.info("session %s has ended: its request is not cancelled", session_id)


async def _call(name: str, call: SessionCall, wait_seconds: int = 0) -> dict[str, Any]:
    """Run an activity on the callers' task queue, and raise its refusal as the client does."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    answer: dict[str, Any] = await _translate_errors(
        workflow.execute_activity(
            name,
            dump_input(call),
            result_type=dict,
            task_queue=name_caller_queue(call.task_queue),
            start_to_close_timeout=CALL_TIMEOUT + timedelta(seconds=wait_seconds),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            # The message must have been sent or not when its request is cancelled.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=call.session_id,
        )
    )
    # Of a cancelled activity that has completed all the same, the SDK gives the result, and hides the cancellation.
    if task.cancelling() > cancelled_before:
        raise asyncio.CancelledError
    return answer


async def _translate_errors(work: Awaitable[T]) -> T:
    try:
        return await work
    except (ActivityError, ChildWorkflowError) as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type:
            raise _make_failure(make_error(error.cause.type, error.cause.message)) from error
        raise


def _make(model: type[M], fields: Mapping[str, Any]) -> M:
    try:
        return make_input(model, fields)
    except ClewError as error:
        raise _make_failure(error) from None


def _make_failure(error: ClewError) -> ClewError:
    """Make an error that is caught as the client's error, and fails a workflow that does not catch it.

    Temporal fails workflows by its own errors only; any other error would repeat the workflow task without end.
    """
    if isinstance(error, RequestFailed):
        outcome = error.outcome
        word = outcome.error.type if outcome.error else outcome.termination_reason or outcome.status
    else:
        word = getattr(error, "type", "refused")
    error_class = type(error)
    if error_class not in _FAILING:
        _FAILING[error_class] = type(error_class.__name__, (error_class, ApplicationError), {})
    failing = _FAILING[error_class]
    failure = failing.__new__(failing)
    ApplicationError.__init__(failure, str(error), type=word, non_retryable=True)
    failure.__dict__.update({name: value for name, value in vars(error).items() if name != "message"})
    result: ClewError = failure
    return result
