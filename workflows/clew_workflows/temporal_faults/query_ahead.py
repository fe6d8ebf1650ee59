"""A query advances a workflow to events of a task that has not started: fail such a query, and evict the workflow.

A worker that was paused gets the queries that have waited for it together with a history whose newest events no
workflow task has brought yet, and the SDK hands these events to the cached workflow before the query. When their task
comes, with an update or a signal, a replay would handle that first: the history cannot be replayed from then on.

Seen in: temporalio 1.35.0, server 1.32.0 (CLI 1.9.1).
Reproduction: docs/upstream/query_ahead.md, which also has the forms of the fault below.
Can go: when all histories of the reproduction can be replayed; `QUERY_AHEAD` goes with it, where clients wait for it.

A failed activation evicts the workflow: the next task replays the history in its order. `judge` meets these forms:

1. Events come without a new task. They fail, and with them the query that has brought them: its caller repeats it.
2. That eviction may lose a task that has started. A query may then bring its events, as if the task was there. The
   next task goes on with the same history, but at another time or with updates, signals or timers; or its history
   lacks the events of what the workflow did. It fails once.
3. A query for a workflow that is not in the cache fetches its history, which may end with a task that another worker
   has started, and perhaps lost. The SDK runs it as if it was this worker's, and the query would show what never
   becomes part of the history. It looks as if the worker had taken the workflow over by that task. So the first query
   after the first task of a replayed workflow fails: the server answers it when no task is open. A worker that is
   never replaced replays, too: a full cache evicts workflows, and so does the guard.
4. The server may drop the task whose events a query has fetched. Their ids then go to other events, which the SDK
   takes for handled: the workflow never sees them. A query that has more events than the workflow's tasks have made
   passes, and the workflow is evicted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

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
        self._evict: Callable[[str], None] = lambda _run_id: None

    def watch(self, worker: Worker) -> None:
        """Evict from the worker's cache, from now on, workflows that a query has brought events of no task."""
        self._evict = worker._bridge_worker.request_workflow_eviction

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Make a guarded instance."""
        return _Guarded(super().create_instance(det), lambda: self._evict(det.info.run_id))


class _Guarded(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance, evict: Callable[[], None]) -> None:
        self._instance = instance
        self._evict = evict
        self._cached = Cached()
        self._thread: int | None = None

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Pass an activation on, unless it is out of order."""
        verdict = self._cached.judge(act)
        if verdict == "fail":
            return _fail()
        if verdict == "evict":
            self._evict()
        self._thread = threading.get_ident()
        try:
            completion = self._instance.activate(act)
        finally:
            self._thread = None
        self._cached = self._cached.note(act, completion)
        return completion

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


@dataclass(frozen=True, slots=True)
class Cached:
    """What is known of a cached workflow.

    Attributes:
        length: The events of its history at the start of its newest task; 0: it has had none.
        size: Their bytes.
        started_at: When that task started, in nanoseconds.
        made: The events that the task's commands make, at least.
        is_written: Whether the history surely has these: not after a replay, and not after a task that has rejected
            an update, as the server writes no events for a task that does only that.
        is_queried: Whether a query without a task has come since.
        is_replayed: Whether the history was replayed, and no such query has been answered since.
        tasks_run: The tasks that have been run, and not replayed.
    """

    length: int = 0
    size: int = 0
    started_at: int = 0
    made: tuple[str, ...] = ()
    is_written: bool = False
    is_queried: bool = False
    is_replayed: bool = False
    tasks_run: int = 0

    def judge(self, act: WorkflowActivation) -> Literal["pass", "evict", "fail"]:
        """Judge an activation: pass it, pass it and evict the workflow, or fail it."""
        match _classify(act):
            case "task" if self._is_ahead(act) or self._was_lost(act):
                return "fail"
            case "query" if self.is_replayed and self.tasks_run == 1:
                return "fail"
            case "query" if act.history_length > self.length + 1 + len(self.made):
                return "evict"
        return "pass"

    def _is_ahead(self, act: WorkflowActivation) -> bool:
        """Whether there are new events, but no new task has started: size and time are those of the task before.

        A task that the server starts as it takes the results of the one before has its size, but not its time.
        """
        is_same_task = (self.size, self.started_at) == (act.history_size_bytes, act.timestamp.ToNanoseconds())
        return act.history_length > self.length > 0 and self.size > 0 and is_same_task

    def _was_lost(self, act: WorkflowActivation) -> bool:
        """Whether a query has brought the task's events, or those of the task before, which was lost."""
        if not self.is_written:
            return False
        jobs = [job.WhichOneof("variant") for job in act.jobs]
        if act.history_length == self.length:
            # What only a task's first activation may bring.
            is_first = any(job in ("do_update", "signal_workflow", "fire_timer") for job in jobs)
            return self.is_queried and (is_first or self.started_at != act.timestamp.ToNanoseconds())
        # Between two starts: the end of the first task, what it made, what came, and the second task's two events.
        came = sum(job in ("signal_workflow", "fire_timer") for job in jobs)
        return act.history_length < self.length + 1 + len(self.made) + came + 2

    def note(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> Cached:
        """Note what a completed activation shows."""
        kind = _classify(act)
        if kind == "query":
            return replace(self, is_queried=True, is_replayed=False)
        if kind == "other":
            return self
        is_new = act.history_length != self.length
        refused = _list_refused(act, completion)
        return Cached(
            length=act.history_length,
            size=act.history_size_bytes,
            started_at=act.timestamp.ToNanoseconds(),
            made=_list_made(() if is_new else self.made, completion, refused),
            is_written=not (act.is_replaying or refused),
            is_replayed=self.is_replayed or act.is_replaying,
            tasks_run=self.tasks_run + (is_new and not act.is_replaying),
        )


def _classify(act: WorkflowActivation) -> Literal["task", "query", "other"]:
    """Tell a task's activation and a query without a task from evictions and a task's own queries."""
    jobs = {job.WhichOneof("variant") for job in act.jobs}
    if not jobs & {"remove_from_cache", "query_workflow"}:
        return "task"
    # The SDK's id of a query that comes without a task.
    is_lone = any(job.query_workflow.query_id == "legacy_query" for job in act.jobs)
    return "query" if is_lone and "remove_from_cache" not in jobs else "other"


def _list_made(made: tuple[str, ...], completion: WorkflowActivationCompletion, refused: set[str]) -> tuple[str, ...]:
    """List the events that commands surely make, behind others. What is cancelled in its own task makes none."""
    events, cancelled = list(made), set[str]()
    for command in completion.successful.commands:
        match command.WhichOneof("variant"):
            case "upsert_workflow_search_attributes" | "modify_workflow_properties":
                events.append("attributes")
            case "update_response" if command.update_response.protocol_instance_id not in refused:
                events.append("update")
            case "start_timer":
                events.append(f"timer {command.start_timer.seq}")
            case "schedule_activity":
                events.append(f"activity {command.schedule_activity.seq}")
            case "cancel_timer":
                cancelled.add(f"timer {command.cancel_timer.seq}")
            case "request_cancel_activity":
                cancelled.add(f"activity {command.request_cancel_activity.seq}")
    return tuple(event for event in events if event not in cancelled)


def _list_refused(act: WorkflowActivation, completion: WorkflowActivationCompletion) -> set[str]:
    """List the updates that were not accepted. An accepted one that fails is `rejected`, too, and makes an event."""
    brought = {job.do_update.protocol_instance_id for job in act.jobs if job.HasField("do_update")}
    responses = [command.update_response for command in completion.successful.commands]
    accepted = {response.protocol_instance_id for response in responses if response.HasField("accepted")}
    rejected = {response.protocol_instance_id for response in responses if response.HasField("rejected")}
    return (rejected & brought) - accepted
