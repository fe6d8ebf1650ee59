"""A guard against a fault of Temporal's SDK: a query advances a workflow to events of a task that has not started.

A worker that was paused gets the queries that have waited for it together with a history whose newest events no
workflow task has brought yet. The SDK hands these events to the cached workflow before the query. When their task
comes, with an update or a signal, a replay would handle the update first: the history cannot be replayed from then on
(docs/upstream/query_ahead.md). The guard fails such a query instead, which evicts the workflow from the cache. The
caller repeats the query, and the next task replays the history in its order.

An eviction may lose a task that has started. A query may then bring its events, as if the task was there; the guard
notices it at the next task, which goes on with the same history but brings updates, signals or timers, or whose
history lacks the events of what the workflow did, and fails that task once.

A query for a workflow that is not in the cache fetches its history, and the server appends the events of a task that
it may drop later. Their ids then go to other events, which the SDK takes for handled: the workflow never sees them.
The guard evicts a workflow from the cache when a query's history has more events than its tasks have made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.workflow import Info

from clew.errors import Starting

QUERY_AHEAD = f"{Starting.type}: the worker has not begun the session's next task: ask again in a moment"
"""The failure of such a query."""


class QueryGuard(WorkflowRunner):
    """Runs workflows without a sandbox, and keeps queries from advancing them."""

    def __init__(self) -> None:
        self._runner = UnsandboxedWorkflowRunner()
        self._evict: Callable[[str], None] = _keep

    def watch(self, worker: Worker) -> None:
        """Evict from the worker's cache, from now on, workflows that a query has brought events of no task."""
        # There is no public way.
        self._evict = worker._bridge_worker.request_workflow_eviction

    def prepare_workflow(self, defn: Any) -> None:
        """Check the workflow's definition."""
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Make a guarded instance."""
        return _Guarded(self._runner.create_instance(det), lambda: self._evict(det.info.run_id))

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Pass on the exceptions that fail workflows."""
        self._runner.set_worker_level_failure_exception_types(types)


def _keep(_run_id: str) -> None:
    """Evict nothing: no worker is watched."""


class _Guarded(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance, evict: Callable[[], None]) -> None:
        self._instance = instance
        self._evict = evict
        self._length = self._size = self._started_at = 0
        # The events that the commands of the newest task have made, at least.
        self._made = 0
        # Whether the history surely has them: not after a replay, and not after a task that has rejected an update,
        # as the server writes no events for a task that does only that.
        self._is_written = False
        self._is_queried = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Pass an activation on, unless it is out of order."""
        if any(job.HasField("remove_from_cache") for job in act.jobs):
            return self._instance.activate(act)
        if any(job.HasField("query_workflow") for job in act.jobs):
            # The SDK's id of a query that comes without a task.
            if any(job.query_workflow.query_id == "legacy_query" for job in act.jobs):
                if act.history_length > self._length + 1 + self._made:
                    self._evict()
                self._is_queried = True
            return self._instance.activate(act)
        if self._is_ahead(act) or self._is_late(act) or self._lacks_events(act):
            completion = WorkflowActivationCompletion()
            completion.failed.failure.message = QUERY_AHEAD
            completion.failed.failure.application_failure_info.type = "QueryAhead"
            return completion
        completion = self._instance.activate(act)
        made = _count_events(act, completion)
        # The same task goes on, or a new one has begun.
        self._made = self._made + made if act.history_length == self._length else made
        self._is_written, self._is_queried = not (act.is_replaying or _list_refused(act, completion)), False
        self._length, self._size = act.history_length, act.history_size_bytes
        self._started_at = act.timestamp.ToNanoseconds()
        return completion

    def _is_ahead(self, act: WorkflowActivation) -> bool:
        """Whether there are new events, but no new task has started: size and time are those of the task before.

        A task that the server starts as it takes the results of the one before has its size, but not its time.
        """
        return (
            act.history_length > self._length > 0
            and self._size == act.history_size_bytes > 0
            and self._started_at == act.timestamp.ToNanoseconds()
        )

    def _is_late(self, act: WorkflowActivation) -> bool:
        """Whether a task goes on, after a query, at another time or with what only its first activation may bring."""
        if not (self._is_queried and self._is_written and act.history_length == self._length):
            return False
        began_again = self._started_at != act.timestamp.ToNanoseconds()
        return began_again or any(job.WhichOneof("variant") in _FIRST for job in act.jobs)

    def _lacks_events(self, act: WorkflowActivation) -> bool:
        """Whether the history lacks events of the task before: it was lost, after a query had brought its events."""
        if not self._is_written or act.history_length == self._length:
            return False
        brought = sum(job.HasField("signal_workflow") or job.HasField("fire_timer") for job in act.jobs)
        return act.history_length < self._length + 1 + self._made + brought + 2

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


def _list_refused(act: WorkflowActivation, completion: WorkflowActivationCompletion) -> set[str]:
    """List the updates that were not accepted. An accepted one that fails is `rejected`, too, and makes an event."""
    brought = {job.do_update.protocol_instance_id for job in act.jobs if job.HasField("do_update")}
    responses = [command.update_response for command in completion.successful.commands]
    accepted = {response.protocol_instance_id for response in responses if response.HasField("accepted")}
    rejected = {response.protocol_instance_id for response in responses if response.HasField("rejected")}
    return (rejected & brought) - accepted


def _count_events(act: WorkflowActivation, completion: WorkflowActivationCompletion) -> int:
    """Count the events that commands surely make. What is cancelled in its own task makes none."""
    commands, refused = completion.successful.commands, _list_refused(act, completion)
    cancelled = any(command.WhichOneof("variant") in _CANCELLING for command in commands)
    return sum(_makes_event(command, refused, cancelled=cancelled) for command in commands)


def _makes_event(command: WorkflowCommand, refused: Collection[str], *, cancelled: bool) -> bool:
    match command.WhichOneof("variant"):
        case "upsert_workflow_search_attributes" | "modify_workflow_properties":
            return True
        case "start_timer" | "schedule_activity":
            return not cancelled
        case "update_response":
            return command.update_response.protocol_instance_id not in refused
        case _:
            return False


_FIRST = ("do_update", "signal_workflow", "fire_timer")
_CANCELLING = ("cancel_timer", "request_cancel_activity")
