"""Ask the server about a session's workflow: its history, by long polls, and its activities in flight."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from clew.session.events.feed import Flight, Retry
from clew.session.handle import SessionHandle
from clew.session.transport import Pauses, lacks_namespace
from clew_workflows.contract.errors import (
    ArchiveUnavailable,
    ClewError,
    ServerUnreachable,
    Starting,
    UnknownKey,
    WorkerUnavailable,
)
from clew_workflows.contract.outputs import ReplyProgress, ToolProgress
from clew_workflows.encryption.codec import read_message

# Repeat reads that fail for now: a server that restarts, or a session without a worker, comes back.


T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
"""Seconds until a read is repeated, the first time; each pause is twice as long as the one before."""
LONGEST_PAUSE_SECONDS = 5.0
"""Longest of these pauses, in seconds."""

_PASSING = (ServerUnreachable, WorkerUnavailable, Starting, ArchiveUnavailable, TimeoutError, ConnectionError)
_FINAL_STATUSES = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)


def is_passing(error: Exception) -> bool:
    """Whether the same read may succeed later."""
    if isinstance(error, RPCError):
        return error.status not in _FINAL_STATUSES or lacks_namespace(error)
    if type(error) is ClewError and isinstance(error.__cause__, RPCError):
        return is_passing(error.__cause__)
    return isinstance(error, _PASSING)


async def persist(read: Callable[[], Awaitable[T]]) -> T:
    """Read something, again and again while it fails for reasons that pass."""
    pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        try:
            return await read()
        except Exception as error:
            if not is_passing(error):
                raise
        await pauses.wait()


LONG_POLL_SECONDS = 65
"""Seconds within which the server answers a long poll. By default it answers after 20 seconds."""
CALL_SECONDS = 10
"""Seconds within which the server answers another call."""
NEWEST_EVENTS = 30
"""Newest events in which a viewer that comes looks for workflow tasks."""
MODEL_CALL = "call_model"
TOOL_CALL = "run_tool"

_ENDS = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)


@dataclass(frozen=True, slots=True)
class Execution:
    """The newest workflow run of a session.

    Attributes:
        run_id: The workflow run.
        status: Its status.
        events: The events of its history.
        pending: Its activities in flight.
    """

    run_id: str
    status: WorkflowExecutionStatus.ValueType
    events: int
    pending: Sequence[PendingActivityInfo]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING

    @property
    def is_complete(self) -> bool:
        """Whether it has ended by itself: its session hibernates, was closed, or goes on in the next one."""
        return self.status in (
            WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED,
            WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW,
        )


@dataclass(frozen=True, slots=True)
class News:
    """What new events of a history mean to viewers.

    Attributes:
        decided: The workflow tasks in which the session may have committed entries, or changed its status: the number
            and the time (nanoseconds) of the event with which each has started.
        has_called: A model call or a tool call was scheduled.
        has_ended: The workflow run has ended.
    """

    decided: Sequence[tuple[int, int]]
    has_called: bool
    has_ended: bool


async def describe(handle: SessionHandle, run_id: str = "") -> Execution | None:
    """Describe a workflow run of a session, by default the newest; None: the server knows none."""
    client = handle.client
    request = DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=handle.session_id, run_id=run_id)
    )
    try:
        answer: DescribeWorkflowExecutionResponse = await client.workflow_service.describe_workflow_execution(
            request, timeout=timedelta(seconds=CALL_SECONDS)
        )
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND and not lacks_namespace(error):
            return None
        raise
    info = answer.workflow_execution_info
    return Execution(info.execution.run_id, info.status, info.history_length, answer.pending_activities)


async def watch_history(handle: SessionHandle, run_id: str, known_events: int) -> AsyncIterator[News]:
    """Wait for new events of a workflow run, again and again until it ends. One call to the server is outstanding.

    The server returns the history from its first event on before it waits. Events up to `known_events` are skipped.
    """
    client = handle.client
    token, started = b"", dict[int, int]()
    while True:
        answer = await client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=handle.session_id, run_id=run_id),
                wait_new_event=True,
                next_page_token=token,
            ),
            timeout=timedelta(seconds=LONG_POLL_SECONDS),
        )
        decided = _list_decided(answer.history.events, started)
        events = [event for event in answer.history.events if event.event_id > known_events]
        if events:
            yield News(
                decided=decided,
                has_called=any(map(_is_call, events)),
                has_ended=any(event.event_type in _ENDS for event in events),
            )
        token = answer.next_page_token
        if not token:
            # The history is complete.
            return


async def read_newest_tasks(handle: SessionHandle, run_id: str) -> list[tuple[int, int]] | None:
    """Read the newest workflow tasks that the history has, in order, as `News.decided` has them.

    None: the newest events have none, and there are older ones.
    """
    client = handle.client
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=handle.session_id, run_id=run_id),
            maximum_page_size=NEWEST_EVENTS,
        ),
        timeout=timedelta(seconds=CALL_SECONDS),
    )
    return _list_decided(reversed(answer.history.events), {}) or (None if answer.next_page_token else [])


def _list_decided(events: Iterable[HistoryEvent], started: dict[int, int]) -> list[tuple[int, int]]:
    """List the tasks that have ended. `started`: the times of those that have started before, by event."""
    decided = list[tuple[int, int]]()
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            started[event.event_id] = event.event_time.ToNanoseconds()
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            begun = event.workflow_task_completed_event_attributes.started_event_id
            if begun in started:
                decided.append((begun, started.pop(begun)))
    return decided


def _is_call(event: HistoryEvent) -> bool:
    attributes = event.activity_task_scheduled_event_attributes
    return event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED and attributes.activity_type.name in (
        MODEL_CALL,
        TOOL_CALL,
    )


async def read_flights(handle: SessionHandle, pending: Sequence[PendingActivityInfo]) -> tuple[Flight, ...]:
    """Read the model call and the tool calls among a workflow's activities, with their newest heartbeats."""
    return tuple([await _read_flight(handle, info) for info in pending if info.activity_type.name in _PROGRESS])


def list_started(pending: Sequence[PendingActivityInfo]) -> list[str]:
    """List the model calls and the tool calls that a worker has begun."""
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return [info.activity_id for info in pending if info.activity_type.name in _PROGRESS and info.state == started]


_PROGRESS: dict[str, type[ReplyProgress | ToolProgress]] = {MODEL_CALL: ReplyProgress, TOOL_CALL: ToolProgress}


async def _read_flight(handle: SessionHandle, pending: PendingActivityInfo) -> Flight:
    name, converter = pending.activity_type.name, _make_converter(handle)
    progress: ReplyProgress | ToolProgress | None = None
    if pending.heartbeat_details.payloads:
        # A remote tool may have an activity of these names: its heartbeats have another form.
        try:
            (details,) = await converter.decode(pending.heartbeat_details.payloads[:1], [dict])
            progress = _PROGRESS[name].model_validate(details)
        except (ValueError, KeyError, RuntimeError, UnknownKey):
            progress = None
    return Flight(pending.activity_id, name == MODEL_CALL, progress, await _read_retry(pending, converter))


def _make_converter(handle: SessionHandle) -> DataConverter:
    client = handle.client
    return client.data_converter.with_context(WorkflowSerializationContext(client.namespace, handle.session_id))


async def _read_retry(pending: PendingActivityInfo, converter: DataConverter) -> Retry | None:
    """Read why the last attempt of an activity failed; None: none has failed.

    Also while the next attempt runs: the wait before it may be too short to be seen.
    """
    if pending.attempt < 2 or not pending.HasField("last_failure"):
        return None
    failure = pending.last_failure
    if failure.HasField("server_failure_info") and failure.HasField("cause"):
        # The server keeps a part of a failure that is too large, as the cause of one of its own.
        failure = failure.cause
    if failure.HasField("timeout_failure_info"):
        # The attempts have no time limit but that of their heartbeats.
        error, message = "worker_lost", "the worker stopped answering"
    else:
        error = failure.application_failure_info.type or "error"
        try:
            message = await read_message(failure, converter)
        except (ValueError, KeyError, RuntimeError, UnknownKey):
            message = "the worker's message cannot be decrypted"
    next_at, waits = None, pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    if waits and pending.HasField("next_attempt_schedule_time"):
        moment = pending.next_attempt_schedule_time.ToDatetime(UTC)
        next_at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Retry(pending.attempt, error, message[:2000], next_at)
