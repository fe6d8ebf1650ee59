"""A query advances a workflow to events of a task that has not started: fail such a query, and evict the workflow.

A worker that was paused gets the queries that have waited for it together with a history whose newest events no
workflow task has brought yet, and the SDK hands these events to the cached workflow before the query. When their task
comes, with an update or a signal, a replay would handle the update first: the history cannot be replayed from then
on.

Seen in: temporalio 1.35.0, server 1.32.0 (CLI 1.9.1).
Reproduction: docs/upstream/query_ahead.md, which also has the ways of the fault that the guard meets below.
Can go: when all histories of the reproduction can be replayed; `QUERY_AHEAD` goes with it, where clients wait for it.

The guard fails such a query, which evicts the workflow from the cache. The caller repeats the query, and the next
task replays the history in its order.

An eviction may lose a task that has started. A query may then bring its events, as if the task was there; the guard
notices it at the next task, which goes on with the same history but brings updates, signals or timers, or whose
history lacks the events of what the workflow did, and fails that task once.

A query for a workflow that is not in the cache fetches its history, and the server appends the events of a task that
it may drop later. Their ids then go to other events, which the SDK takes for handled: the workflow never sees them.
The guard evicts a workflow from the cache when a query's history has more events than its tasks have made.

Such a history may also end with a task that another worker has started, and perhaps lost. The SDK runs it as if it
was this worker's, and the query would show what never becomes part of the history. It looks as if the worker had
taken the workflow over by that task. So the guard fails the first query after the first task of a workflow that was
replayed for it: the caller repeats it, and the server answers it when no task is open. A worker that is never
replaced replays, too: a full cache evicts workflows, and so does the guard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from clew_workflows.contract.errors import Starting
from clew_workflows.temporal_faults.private_parts import WorkflowActivation, WorkflowActivationCompletion

QUERY_AHEAD = f"{Starting.type}: the worker has not begun the session's next task: ask again in a moment"
"""The failure of a query that a worker cannot answer for now: its history has a task that may be another worker's."""


class QueryGuard(UnsandboxedWorkflowRunner):
    """Runs workflows without a sandbox, and keeps queries from advancing them."""

    def __init__(self) -> None:
        super().__init__()
        self._evict: Callable[[str], None] = _keep

    def watch(self, worker: Worker) -> None:
        """Evict from the worker's cache, from now on, workflows that a query has brought events of no task."""
        self._evict = worker._bridge_worker.request_workflow_eviction

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Make a guarded instance."""
        return _Guarded(super().create_instance(det), lambda: self._evict(det.info.run_id))


def _keep(_run_id: str) -> None:
    """Evict nothing: no worker is watched."""


class _Guarded(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance, evict: Callable[[], None]) -> None:
        self._instance = instance
        self._evict = evict
        self._length = self._size = self._started_at = 0
        # The events that the commands of the newest task make, at least.
        self._made = _MadeEvents()
        # Whether the history surely has them: not after a replay, and not after a task that has rejected an update,
        # as the server writes no events for a task that does only that.
        self._is_written = False
        self._is_queried = False
        # Whether the history was replayed, and no query has been answered between that and the first task.
        self._is_replayed = False
        # The tasks that have been run, and not replayed.
        self._tasks_run = 0
        self._thread: int | None = None

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Pass an activation on, unless it is out of order."""
        self._thread = threading.get_ident()
        try:
            return self._pass_on(act)
        finally:
            self._thread = None

    def _pass_on(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        jobs = {job.WhichOneof("variant") for job in act.jobs}
        if "remove_from_cache" in jobs:
            return self._instance.activate(act)
        if "query_workflow" in jobs:
            # The SDK's id of a query that comes without a task.
            if any(job.query_workflow.query_id == "legacy_query" for job in act.jobs):
                if self._is_replayed and self._tasks_run == 1:
                    return _fail()
                self._is_replayed = False
                if act.history_length > self._length + 1 + self._made.count:
                    self._evict()
                self._is_queried = True
            return self._instance.activate(act)
        if self._is_ahead(act) or self._is_late(act) or self._lacks_events(act):
            return _fail()
        completion = self._instance.activate(act)
        if act.history_length != self._length:
            self._made = _MadeEvents()
            self._tasks_run += not act.is_replaying
        self._is_replayed = self._is_replayed or act.is_replaying
        refused = _list_refused(act, completion) if "do_update" in jobs else set[str]()
        self._made.add(completion, refused)
        self._is_written, self._is_queried = not (act.is_replaying or refused), False
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
        return act.history_length < self._length + 1 + self._made.count + brought + 2

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        """Return the thread that runs the activation, which the SDK may interrupt.

        The instance itself would also name the thread of an earlier one, which may be the event loop's.
        """
        return self._thread


def _fail() -> WorkflowActivationCompletion:
    """Fail an activation, which evicts the workflow from the cache."""
    completion = WorkflowActivationCompletion()
    completion.failed.failure.message = QUERY_AHEAD
    completion.failed.failure.application_failure_info.type = "QueryAhead"
    return completion


class _MadeEvents:
    """Counts the events that the commands of a task surely make. What is cancelled in its own task makes none."""

    def __init__(self) -> None:
        self._others = 0
        self._begun: set[tuple[str, int]] = set()

    @property
    def count(self) -> int:
        """The events."""
        return self._others + len(self._begun)

    def add(self, completion: WorkflowActivationCompletion, refused: Collection[str]) -> None:
        """Count the commands of one of the task's activations, which has refused these updates."""
        for command in completion.successful.commands:
            match command.WhichOneof("variant"):
                case "upsert_workflow_search_attributes" | "modify_workflow_properties":
                    self._others += 1
                case "update_response":
                    self._others += command.update_response.protocol_instance_id not in refused
                case "start_timer":
                    self._begun.add(("timer", command.start_timer.seq))
                case "schedule_activity":
                    self._begun.add(("activity", command.schedule_activity.seq))
                case "cancel_timer":
                    self._begun.discard(("timer", command.cancel_timer.seq))
                case "request_cancel_activity":
                    self._begun.discard(("activity", command.request_cancel_activity.seq))


def _list_refused(act: WorkflowActivation, completion: WorkflowActivationCompletion) -> set[str]:
    """List the updates that were not accepted. An accepted one that fails is `rejected`, too, and makes an event."""
    brought = {job.do_update.protocol_instance_id for job in act.jobs if job.HasField("do_update")}
    responses = [command.update_response for command in completion.successful.commands]
    accepted = {response.protocol_instance_id for response in responses if response.HasField("accepted")}
    rejected = {response.protocol_instance_id for response in responses if response.HasField("rejected")}
    return (rejected & brought) - accepted


_FIRST = ("do_update", "signal_workflow", "fire_timer")
