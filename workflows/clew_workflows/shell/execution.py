"""Effects, carried out: each is an activity, and what comes back is an event for the decisions.

Nothing here knows the session's state, which may have moved on by the time that an event is there.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from clew_workflows.core import labels
from clew_workflows.protocol import (
    STORING_SECONDS,
    ArchiveRef,
    Archiving,
    CallModel,
    DescribeModel,
    Event,
    Failure,
    ModelAnswered,
    ModelProfile,
    Prepare,
    Prepared,
    Recall,
    Recalled,
    ResolvedTool,
    RunTool,
    SignCheckpoint,
    Signed,
    Summarize,
    Thaw,
    Thawed,
    ToolAnswered,
    ToolReturned,
    Written,
    model_queue,
    tool_queue,
)
from clew_workflows.shell.failures import failure_of

T = TypeVar("T", bound=BaseModel)

HEARTBEAT_TIMEOUT = timedelta(seconds=5)
# Within the request's time a model call is repeated as long as its failure may pass.
MODEL_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)
# A session can do without a summary, and is busy while one is in the making.
SUMMARY_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=4)
# A store that is away comes back.
STORE_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)
# Nobody waits long for one that says that it is away; another worker may take over from one that has died.
STORE_ATTEMPTS = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=3)
PREPARE_TIMEOUT = timedelta(seconds=30)
ARCHIVE_TIMEOUT = timedelta(minutes=5)
SUMMARY_TIMEOUT = timedelta(minutes=10)
SIGN_TIMEOUT = timedelta(seconds=20)
# A tool that takes its worker down with it is not given every worker there is.
WORKERS_PER_TOOL_CALL = 3


async def carry_out(effect: Prepare | DescribeModel | CallModel, time_left: timedelta | None) -> Event:
    """What the world answers to an effect, or how it failed to within the time; None: however long it takes.

    Raises:
        asyncio.CancelledError: it was given up.
    """
    try:
        match effect:
            case Prepare():
                return await _execute(
                    "prepare",
                    effect,
                    Prepared,
                    schedule_to_close_timeout=time_left,
                    start_to_close_timeout=min(PREPARE_TIMEOUT, time_left or PREPARE_TIMEOUT),
                    summary=labels.prepare_summary(effect),
                )
            case DescribeModel():
                return await _execute(
                    "describe_model",
                    effect,
                    ModelProfile,
                    schedule_to_close_timeout=time_left,
                    start_to_close_timeout=min(PREPARE_TIMEOUT, time_left or PREPARE_TIMEOUT),
                    summary=labels.prepare_summary(effect),
                )
            case CallModel():
                return await _execute(
                    "call_model",
                    effect,
                    ModelAnswered,
                    task_queue=model_queue(workflow.info().task_queue),
                    schedule_to_close_timeout=time_left,
                    retry_policy=MODEL_RETRIES,
                    summary=labels.call_summary(effect),
                    event_groups=[workflow.create_event_group(effect.run_id)],
                )
    except ActivityError as error:
        return failure_of(error)


async def summarize(asked: Summarize) -> Written | Failure:
    """What a model has written, or why there is nothing."""
    try:
        return await _execute(
            "summarize",
            asked,
            Written,
            task_queue=model_queue(workflow.info().task_queue),
            schedule_to_close_timeout=SUMMARY_TIMEOUT,
            retry_policy=SUMMARY_RETRIES,
            summary=labels.summarize_summary(asked),
        )
    except ActivityError as error:
        return failure_of(error)


async def archive(effect: Archiving, patience: timedelta | None) -> ArchiveRef:
    """Write to the archive; with no end of patience, as soon as its store is there.

    Raises:
        ActivityError: it could not be done in time.
    """
    retries = STORE_RETRIES if patience is None else STORE_ATTEMPTS
    return await _with_store("archive", effect, ArchiveRef, schedule_to_close_timeout=patience, retry_policy=retries)


async def thaw(effect: Thaw, patience: timedelta | None) -> Thawed | Failure:
    """Fetch what a session goes on from that was archived whole, or say why that cannot be done within the time."""
    try:
        return await _with_store("thaw", effect, Thawed, schedule_to_close_timeout=patience)
    except ActivityError as error:
        return failure_of(error)


async def recall(effect: Recall, time_left: timedelta) -> Recalled:
    """Fetch what contexts need of a lane's past.

    Raises:
        ActivityError: it could not be done in time.
    """
    summary = labels.recall_summary(effect)
    return await _with_store("recall", effect, Recalled, schedule_to_close_timeout=time_left, summary=summary)


async def sign(effect: SignCheckpoint) -> Signed:
    """Have a checkpoint signed by a worker.

    Raises:
        ActivityError: none could in time, or none has a key.
    """
    return await _execute("sign_checkpoint", effect, Signed, schedule_to_close_timeout=SIGN_TIMEOUT)


def start_tool(call: RunTool, tool: ResolvedTool, time_left: timedelta) -> workflow.ActivityHandle[ToolAnswered]:
    """Start a tool call. Once it is asked to stop, its handle still waits for what comes of it."""
    # The activity keeps the tool's own time, and then stores what it said; this is for a worker that cannot.
    tool_time = timedelta(seconds=tool.timeout_seconds + STORING_SECONDS + 5)
    return workflow.start_activity(
        "run_tool",
        call,
        result_type=ToolAnswered,
        task_queue=tool_queue(workflow.info().task_queue),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        schedule_to_close_timeout=time_left,
        start_to_close_timeout=min(tool_time, time_left),
        retry_policy=RetryPolicy(
            maximum_attempts=tool.max_attempts + WORKERS_PER_TOOL_CALL - 1 if tool.idempotent else 1
        ),
        summary=labels.tool_summary(call),
        event_groups=[workflow.create_event_group(call.run_id)],
    )


async def tool_returned(call: RunTool, activity: workflow.ActivityHandle[ToolAnswered]) -> ToolReturned:
    """What came of a tool call."""
    try:
        return ToolReturned(tool_call_id=call.tool_call_id, answer=await activity)
    except ActivityError as error:
        failure = None if is_cancelled_exception(error) else failure_of(error)
        return ToolReturned(tool_call_id=call.tool_call_id, failure=failure)
    except asyncio.CancelledError:
        return ToolReturned(tool_call_id=call.tool_call_id)


async def _with_store(
    name: str, effect: BaseModel, answer: type[T], retry_policy: RetryPolicy = STORE_RETRIES, **options: Any
) -> T:
    return await _execute(
        name, effect, answer, start_to_close_timeout=ARCHIVE_TIMEOUT, retry_policy=retry_policy, **options
    )


async def _execute(name: str, effect: BaseModel, answer: type[T], **options: Any) -> T:
    try:
        result: T = await workflow.execute_activity(
            name,
            effect,
            result_type=answer,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            # Who gives an effect up does not wait for it.
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            **options,
        )
    except ActivityError as error:
        # An activity is cancelled only where the workflow cancels it; it says so as a task would.
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        raise
    return result
