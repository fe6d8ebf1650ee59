"""Carrying out effects: each runs as an activity. `make_plan` names the activity and its timeouts.

This module reads the session's state only when it starts an activity: the state may change while the activity runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, overload

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from clew_workflows.core import labels
from clew_workflows.core.state import State
from clew_workflows.protocol import (
    HOOK_SECONDS,
    STORING_SECONDS,
    Archiving,
    CallModel,
    CheckpointSignature,
    Declined,
    DescribeModel,
    Effect,
    Failure,
    FunctionRoute,
    HooksAnswered,
    ModelAnswered,
    ModelProfile,
    ModelStopped,
    Outdated,
    PlannedCall,
    Prepare,
    Prepared,
    Recall,
    Recalled,
    RemoteRoute,
    RunHooks,
    SignCheckpoint,
    Summarize,
    Thaw,
    Thawed,
    ToolAnswered,
    WrittenArchive,
    WrittenSummary,
    choose_model_queue,
    name_tool_queue,
)
from clew_workflows.shell.failures import make_failure, make_stopped
from clew_workflows.shell.priorities import make_priority

HEARTBEAT_TIMEOUT = timedelta(seconds=5)
PREPARE_TIMEOUT = timedelta(seconds=30)
ARCHIVE_TIMEOUT = timedelta(minutes=5)
SUMMARY_TIMEOUT = timedelta(minutes=10)
HOOK_TIMEOUT = timedelta(seconds=HOOK_SECONDS + 5)
HOOKS_TIMEOUT = timedelta(minutes=2)
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
# Nothing passes unchecked, so that a request fails if its hooks do.
_HOOK_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=3)
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
        in_run: The Temporal UI groups it under the active run.
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
    in_run: bool = False
    waits: bool = False
    heartbeat: timedelta | None = HEARTBEAT_TIMEOUT
    activity_id: str | None = None


def make_plan(
    effect: Effect,
    time_left: timedelta | None,
    task_queue: str,
    limited: Collection[str] = (),
    *,
    calls_models: bool = False,
) -> Plan:
    """Plan the activity of an effect.

    Args:
        effect: The effect.
        time_left: The time for all attempts; None: no limit.
        task_queue: The session's.
        limited: The providers whose calls have a task queue of their own.
        calls_models: The workers for sessions make model calls, too.
    """
    attempt = min(PREPARE_TIMEOUT, time_left or PREPARE_TIMEOUT)
    match effect:
        case Prepare():
            return Plan("prepare", effect, Prepared, time_left, attempt)
        case DescribeModel():
            return Plan("describe_model", effect, ModelProfile, time_left, attempt)
        case CallModel():
            return Plan(
                "call_model",
                effect,
                ModelAnswered | Outdated | Declined,
                time_left,
                None,
                _PATIENT,
                choose_model_queue(task_queue, effect.model, limited, direct=calls_models and not effect.declined),
                in_run=True,
                waits=True,
            )
        case RunHooks():
            within = min(HOOKS_TIMEOUT, time_left or HOOKS_TIMEOUT)
            answer, queue = HooksAnswered | Outdated, name_tool_queue(task_queue)
            return Plan("run_hooks", effect, answer, within, HOOK_TIMEOUT, _HOOK_RETRIES, queue, in_run=True)
        case PlannedCall():
            return _plan_call(effect, time_left, task_queue)
        case Summarize():
            queue = choose_model_queue(task_queue, effect.model, limited)
            return Plan("summarize", effect, WrittenSummary, SUMMARY_TIMEOUT, None, _SUMMARY_RETRIES, queue)
        case Archiving():
            retries = _PATIENT if time_left is None else _STORE_ATTEMPTS
            return Plan("archive", effect, WrittenArchive, time_left, ARCHIVE_TIMEOUT, retries)
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
            in_run=True,
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
        in_run=True,
        waits=True,
    )


@overload
async def carry_out(effect: Prepare, time_left: timedelta | None, state: State) -> Prepared | Failure: ...


@overload
async def carry_out(effect: DescribeModel, time_left: timedelta | None, state: State) -> ModelProfile | Failure: ...


@overload
async def carry_out(
    effect: RunHooks, time_left: timedelta | None, state: State
) -> HooksAnswered | Outdated | Failure: ...


@overload
async def carry_out(
    effect: CallModel, time_left: timedelta | None, state: State
) -> ModelAnswered | Outdated | Declined | ModelStopped: ...


@overload
async def carry_out(effect: Summarize, time_left: timedelta | None, state: State) -> WrittenSummary | Failure: ...


@overload
async def carry_out(effect: Archiving, time_left: timedelta | None, state: State) -> WrittenArchive | Failure: ...


@overload
async def carry_out(effect: Thaw, time_left: timedelta | None, state: State) -> Thawed | Failure: ...


@overload
async def carry_out(effect: Recall, time_left: timedelta | None, state: State) -> Recalled | Failure: ...


@overload
async def carry_out(
    effect: SignCheckpoint, time_left: timedelta | None, state: State
) -> CheckpointSignature | Failure: ...


async def carry_out(effect: Effect, time_left: timedelta | None, state: State) -> Any:
    """Run the activity of an effect; return its answer, or a failure. `time_left` None: no limit.

    The session's state as it is now labels the activity, and says its priority and its task queue.

    Raises:
        asyncio.CancelledError: The effect was given up, or stopped before there was an answer.
    """
    translate = make_stopped if isinstance(effect, CallModel) else make_failure
    return await await_answer(start(effect, time_left, state), translate)


def start(effect: Effect, time_left: timedelta | None, state: State) -> workflow.ActivityHandle[Any]:
    """Start the activity of an effect. The state as it is now labels it, and says its priority and its task queue."""
    own_queue = workflow.info().task_queue
    plan = make_plan(effect, time_left, own_queue, state.limited, calls_models=state.calls_models)
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
        priority=make_priority(state),
        summary=labels.make_label(effect, state),
        event_groups=group_by_run(state) if plan.in_run else None,
    )


def group_by_run(state: State) -> list[workflow.EventGroup]:
    """Make the event group of the active run."""
    label = labels.label_run(state)
    return [workflow.create_event_group(state.run.run_id, label=label)] if state.run else []


async def await_answer(
    activity: workflow.ActivityHandle[Any], translate: Callable[[ActivityError], Any] = make_failure
) -> Any:
    """Wait for an activity; return its answer, or what `translate` makes of its failure.

    Raises:
        asyncio.CancelledError: The activity was cancelled.
    """
    try:
        return await activity
    except ActivityError as error:
        # Only the workflow cancels activities: report it like a cancelled task.
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        return translate(error)
