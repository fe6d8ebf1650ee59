"""Carrying out effects: each runs as an activity. `make_plan` names the activity and its timeouts.

This module does not read the session's state, which may change while an activity runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, overload

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from clew_workflows.core import labels
from clew_workflows.protocol import (
    STORING_SECONDS,
    ArchiveRef,
    Archiving,
    CallModel,
    CheckpointSignature,
    DescribeModel,
    Effect,
    Failure,
    FunctionRoute,
    ModelAnswered,
    ModelProfile,
    Outdated,
    PlannedCall,
    Prepare,
    Prepared,
    Recall,
    Recalled,
    RemoteRoute,
    SignCheckpoint,
    Summarize,
    Thaw,
    Thawed,
    ToolAnswered,
    WrittenSummary,
    name_model_queue,
    name_tool_queue,
)
from clew_workflows.shell.failures import make_failure

HEARTBEAT_TIMEOUT = timedelta(seconds=5)
PREPARE_TIMEOUT = timedelta(seconds=30)
ARCHIVE_TIMEOUT = timedelta(minutes=5)
SUMMARY_TIMEOUT = timedelta(minutes=10)
SIGN_TIMEOUT = timedelta(seconds=20)
WORKERS_PER_TOOL_CALL = 3
"""Workers that may be lost to one tool call beside its retries: the tool may crash each of them."""

# For model calls, until the request's time is over, and for the archive, until the store answers. A provider's
# Retry-After overrides the wait of a model call (`make_provider_failure`).
_PATIENT = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)
# A session is busy while a summary is written, and can do without it.
_SUMMARY_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=4)
# For the archive while a caller waits. More than one attempt, because a worker may be lost.
_STORE_ATTEMPTS = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=3)


@dataclass(frozen=True, slots=True)
class Plan:
    """How an effect is carried out.

    Attributes:
        activity: The name of the activity.
        argument: What the activity receives.
        answer: The type of its answer, or a union of types.
        within: The time for all attempts; None: no limit.
        attempt: The time for one attempt; None: no limit but `within`.
        retries: The retry policy; None: the server's default, until the time is over.
        queue: The task queue; None: the deployment's own.
        run_id: The run that the Temporal UI groups it under.
        waits: A cancelled activity is waited for, since it may still return a result.
        heartbeat: The longest time between two heartbeats; None: the activity need not send any.
        activity_id: The id of the activity; None: the SDK makes one.
    """

    activity: str
    argument: BaseModel | dict[str, Any]
    answer: Any
    within: timedelta | None
    attempt: timedelta | None = None
    retries: RetryPolicy | None = None
    queue: str | None = None
    run_id: str | None = None
    waits: bool = False
    heartbeat: timedelta | None = HEARTBEAT_TIMEOUT
    activity_id: str | None = None


def make_plan(effect: Effect, time_left: timedelta | None, task_queue: str) -> Plan:
    """Plan the activity of an effect. `time_left` is the time for all attempts; None: no limit."""
    models = name_model_queue(task_queue)
    attempt = min(PREPARE_TIMEOUT, time_left or PREPARE_TIMEOUT)
    match effect:
        case Prepare():
            return Plan("prepare", effect, Prepared, time_left, attempt)
        case DescribeModel():
            return Plan("describe_model", effect, ModelProfile, time_left, attempt)
        case CallModel():
            return Plan(
                "call_model", effect, ModelAnswered | Outdated, time_left, None, _PATIENT, models, effect.run_id
            )
        case PlannedCall():
            return _plan_call(effect, time_left, task_queue)
        case Summarize():
            return Plan("summarize", effect, WrittenSummary, SUMMARY_TIMEOUT, None, _SUMMARY_RETRIES, models)
        case Archiving():
            retries = _PATIENT if time_left is None else _STORE_ATTEMPTS
            return Plan("archive", effect, ArchiveRef, time_left, ARCHIVE_TIMEOUT, retries)
        case Thaw():
            return Plan("thaw", effect, Thawed, time_left, ARCHIVE_TIMEOUT, _PATIENT)
        case Recall():
            return Plan("recall", effect, Recalled, time_left, ARCHIVE_TIMEOUT, _PATIENT)
        case SignCheckpoint():
            return Plan("sign_checkpoint", effect, CheckpointSignature, SIGN_TIMEOUT)


def _plan_call(planned: PlannedCall, time_left: timedelta | None, task_queue: str) -> Plan:
    """Plan the activity of a tool call: `run_tool`, or the one of a remote tool."""
    call, tool, route = planned.call, planned.tool, planned.tool.route
    if isinstance(route, RemoteRoute):
        tool_time = timedelta(seconds=max(tool.timeout_seconds, 0.001))
        attempts = tool.max_attempts if tool.idempotent else 1
        return Plan(
            route.activity,
            call.arguments,
            # Raw: the session reads the result itself, so that none fails a workflow task.
            RawValue,
            time_left,
            min(tool_time, time_left or tool_time),
            RetryPolicy(maximum_attempts=attempts),
            route.task_queue,
            call.run_id,
            waits=True,
            heartbeat=None,
            activity_id=call.tool_call_id,
        )
    # The activity ends the tool at its timeout and stores the result. This timeout is for one that hangs.
    tool_time = timedelta(seconds=tool.timeout_seconds + STORING_SECONDS + 5)
    attempts = tool.max_attempts + WORKERS_PER_TOOL_CALL - 1 if tool.idempotent else 1
    own_queue = route.task_queue if isinstance(route, FunctionRoute) else None
    return Plan(
        "run_tool",
        call,
        ToolAnswered,
        time_left,
        min(tool_time, time_left or tool_time),
        RetryPolicy(maximum_attempts=attempts),
        name_tool_queue(own_queue or task_queue),
        call.run_id,
        waits=True,
    )


@overload
async def carry_out(effect: Prepare, time_left: timedelta | None) -> Prepared | Failure: ...


@overload
async def carry_out(effect: DescribeModel, time_left: timedelta | None) -> ModelProfile | Failure: ...


@overload
async def carry_out(effect: CallModel, time_left: timedelta | None) -> ModelAnswered | Outdated | Failure: ...


@overload
async def carry_out(effect: Summarize, time_left: timedelta | None) -> WrittenSummary | Failure: ...


@overload
async def carry_out(effect: Archiving, time_left: timedelta | None) -> ArchiveRef | Failure: ...


@overload
async def carry_out(effect: Thaw, time_left: timedelta | None) -> Thawed | Failure: ...


@overload
async def carry_out(effect: Recall, time_left: timedelta | None) -> Recalled | Failure: ...


@overload
async def carry_out(effect: SignCheckpoint, time_left: timedelta | None) -> CheckpointSignature | Failure: ...


async def carry_out(effect: Effect, time_left: timedelta | None) -> Any:
    """Run the activity of an effect; return its answer, or a failure. `time_left` None: no limit.

    Raises:
        asyncio.CancelledError: The effect was given up.
    """
    return await await_answer(start(effect, time_left))


def start(effect: Effect, time_left: timedelta | None) -> workflow.ActivityHandle[Any]:
    """Start the activity of an effect."""
    plan = make_plan(effect, time_left, workflow.info().task_queue)
    stopping = workflow.ActivityCancellationType
    return workflow.start_activity(
        plan.activity,
        plan.argument,
        result_type=plan.answer,
        task_queue=plan.queue,
        schedule_to_close_timeout=plan.within,
        start_to_close_timeout=plan.attempt,
        heartbeat_timeout=plan.heartbeat,
        retry_policy=plan.retries,
        cancellation_type=stopping.WAIT_CANCELLATION_COMPLETED if plan.waits else stopping.TRY_CANCEL,
        activity_id=plan.activity_id,
        summary=labels.make_label(effect),
        event_groups=[workflow.create_event_group(plan.run_id)] if plan.run_id else None,
    )


async def await_answer(activity: workflow.ActivityHandle[Any]) -> Any:
    """Wait for an activity; return its answer, or a failure.

    Raises:
        asyncio.CancelledError: The activity was cancelled.
    """
    try:
        return await activity
    except ActivityError as error:
        # Only the workflow cancels activities: report it like a cancelled task.
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        return make_failure(error)
