"""Carrying out effects: each runs as an activity. `choose_options` names the activity, its timeouts and retries.

This module reads the session's state only when it starts an activity: the state may change while the activity runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, overload

from pydantic import BaseModel
from temporalio import exceptions, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import Priority, RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType, is_cancelled_exception

from clew_workflows.contract.config import find_fairness_key
from clew_workflows.contract.errors import ArchiveDamaged
from clew_workflows.contract.limits import WAIT_SECONDS
from clew_workflows.contract.names import choose_model_queue, name_tool_queue
from clew_workflows.contract.outputs import ReplyProgress
from clew_workflows.host.local_runs import LOCAL_RUNS
from clew_workflows.host.retries import HOOK_RETRIES, PATIENT, STORE_ATTEMPTS, SUMMARY_RETRIES
from clew_workflows.protocol import (
    HOOK_SECONDS,
    STORING_SECONDS,
    Archiving,
    BlobsChecked,
    CallModel,
    CheckBlobs,
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
    ToolReturned,
    WrittenArchive,
    WrittenSummary,
    describe_read,
)
from clew_workflows.session import ui
from clew_workflows.session.state import State
from clew_workflows.session.tool_rounds import read_remote_result

# The time limits of a session's waits.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """The time limits. They are a part of the workflow's code: a replay needs the values of the original run.

    Attributes:
        store_timeout: The time for the archive's store to answer while the session can continue without it.
        store_retry_interval: The time from the end of an attempt to the next one, after the store did not answer.
        caller_patience: The time after which a caller that waits for an outcome gives way to another one.
        lists_interval: The time in which lists get a few updates of a session, and after which a run counts as long.
    """

    store_timeout: timedelta = timedelta(seconds=15)
    store_retry_interval: timedelta = timedelta(seconds=60)
    caller_patience: timedelta = timedelta(seconds=WAIT_SECONDS)
    lists_interval: timedelta = timedelta(seconds=10)


# The place of a session's activities and subagents among those that wait for workers.


def make_priority(state: State) -> Priority:
    """Make the priority of what a session starts: its configuration's, and the fairness key of its tenant or user."""
    config, inherited = state.settings.config, workflow.info().priority.fairness_key
    return Priority(config.priority, find_fairness_key(state.session_id, config.metadata, inherited))


# Converting failed activities to failures of the protocol.


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


HEARTBEAT_TIMEOUT = timedelta(seconds=8)
"""Longest time between two heartbeats. Activities send one every 4 seconds, so that one may be late. Another worker
begins a lost call after this time and the first wait between two attempts, a second."""
PREPARE_TIMEOUT = timedelta(seconds=30)
ARCHIVE_TIMEOUT = timedelta(minutes=5)
SUMMARY_TIMEOUT = timedelta(minutes=10)
HOOK_TIMEOUT = timedelta(seconds=HOOK_SECONDS + 5)
HOOKS_TIMEOUT = timedelta(minutes=2)
BLOBS_TIMEOUT = timedelta(seconds=30)
SIGN_TIMEOUT = timedelta(seconds=20)
WORKERS_PER_TOOL_CALL = 3
"""Workers that may be lost to one tool call beside its retries: the tool may crash each of them."""


@dataclass(frozen=True, slots=True)
class ActivityOptions:
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


def choose_options(
    effect: Effect,
    time_left: timedelta | None,
    task_queue: str,
    limited: Collection[str] = (),
    *,
    calls_models: bool = False,
) -> ActivityOptions:
    """Choose the options of the activity of an effect.

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
            return ActivityOptions("prepare", effect, Prepared, time_left, attempt)
        case DescribeModel():
            return ActivityOptions("describe_model", effect, ModelProfile, time_left, attempt)
        case CallModel():
            return ActivityOptions(
                "call_model",
                effect,
                ModelAnswered | Outdated | Declined,
                time_left,
                None,
                PATIENT,
                choose_model_queue(task_queue, effect.model, limited, direct=calls_models and not effect.declined),
                in_run=True,
                waits=True,
            )
        case RunHooks():
            within = min(HOOKS_TIMEOUT, time_left or HOOKS_TIMEOUT)
            answer, queue = HooksAnswered | Outdated, name_tool_queue(task_queue)
            return ActivityOptions(
                "run_hooks", effect, answer, within, HOOK_TIMEOUT, HOOK_RETRIES, queue, in_run=True
            )
        case PlannedCall():
            return _choose_call_options(effect, time_left, task_queue)
        case Summarize():
            queue = choose_model_queue(task_queue, effect.model, limited)
            return ActivityOptions("summarize", effect, WrittenSummary, SUMMARY_TIMEOUT, None, SUMMARY_RETRIES, queue)
        case Archiving():
            retries = PATIENT if time_left is None else STORE_ATTEMPTS
            return ActivityOptions("archive", effect, WrittenArchive, time_left, ARCHIVE_TIMEOUT, retries)
        case Thaw():
            return ActivityOptions("thaw", effect, Thawed, time_left, ARCHIVE_TIMEOUT, PATIENT)
        case Recall():
            return ActivityOptions("recall", effect, Recalled, time_left, ARCHIVE_TIMEOUT, PATIENT)
        case SignCheckpoint():
            return ActivityOptions("sign_checkpoint", effect, CheckpointSignature, SIGN_TIMEOUT)
        case CheckBlobs():
            return ActivityOptions("check_blobs", effect, BlobsChecked, BLOBS_TIMEOUT, retries=STORE_ATTEMPTS)


def _choose_call_options(planned: PlannedCall, time_left: timedelta | None, task_queue: str) -> ActivityOptions:
    """Choose the options of the activity of a tool call: `run_tool`, or the one of a remote tool."""
    call, tool, route = planned.call, planned.tool, planned.tool.route
    if isinstance(route, RemoteRoute):
        tool_time = timedelta(seconds=max(tool.timeout_seconds, 0.001))
        attempts = tool.max_attempts if tool.idempotent else 1
        return ActivityOptions(
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
    return ActivityOptions(
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


@overload
async def carry_out(effect: CheckBlobs, time_left: timedelta | None, state: State) -> BlobsChecked | Failure: ...


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
    options = choose_options(
        effect, time_left, own_queue, state.settings.limited, calls_models=state.settings.calls_models
    )
    stopping = workflow.ActivityCancellationType
    if options.waits and not workflow.unsafe.is_replaying():
        LOCAL_RUNS.note_call(workflow.info().run_id)
    return workflow.start_activity(
        options.activity,
        options.argument,
        result_type=options.answer,
        task_queue=options.queue,
        schedule_to_close_timeout=options.within,
        start_to_close_timeout=options.attempt,
        heartbeat_timeout=options.heartbeat,
        retry_policy=options.retries,
        cancellation_type=stopping.WAIT_CANCELLATION_COMPLETED if options.waits else stopping.TRY_CANCEL,
        activity_id=options.activity_id,
        priority=make_priority(state),
        summary=ui.make_label(effect, state),
        event_groups=group_by_run(state) if options.in_run else None,
    )


def group_by_run(state: State) -> list[workflow.EventGroup]:
    """Make the event group of the active run."""
    label = ui.label_run(state)
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


async def await_result(planned: PlannedCall, activity: workflow.ActivityHandle[ToolAnswered]) -> ToolReturned:
    """Wait for a call of a function; return its answer or its failure, neither if it was cancelled."""
    call = planned.call
    try:
        answer = await await_answer(activity)
    except asyncio.CancelledError:
        return ToolReturned(tool_call_id=call.tool_call_id)
    if isinstance(answer, Failure):
        return ToolReturned(tool_call_id=call.tool_call_id, failure=answer)
    return ToolReturned(tool_call_id=call.tool_call_id, answer=answer)


# Remote calls: the result or the failure of another worker's activity, whatever it is.


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
    answer = read_remote_result(encoding, payload.data, call.max_result_bytes)
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
