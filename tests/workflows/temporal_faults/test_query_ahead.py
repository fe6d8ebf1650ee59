"""Queries that come after a pause of the worker do not advance a session ahead of its workflow task."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    QueryWorkflowRequest,
    RespondWorkflowTaskFailedRequest,
)
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowInstance, WorkflowInstanceDetails

from clew import Clew, Session
from clew.errors import ClewError
from clew.local import Reply
from clew.testing import replay
from clew_activities.worker import assembly
from clew_workflows.temporal_faults import query_ahead
from clew_workflows.temporal_faults.query_ahead import QUERY_AHEAD, Cached, QueryGuard
from tests.support.processes import open_session_on, run_worker_process
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until

STOPS = 4
ROUNDS = 20


class Instance(WorkflowInstance):
    """Starts a timer in every activation but queries, lets an update fail, or cancels its newest timer."""

    fails: str | None = None
    cancels = False

    def __init__(self) -> None:
        self._timers = 0

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        completion = WorkflowActivationCompletion()
        completion.successful.SetInParent()
        commands = completion.successful.commands
        if self.fails is not None:
            response = commands.add().update_response
            response.protocol_instance_id = self.fails
            response.rejected.SetInParent()
        elif self.cancels:
            commands.add().cancel_timer.seq = self._timers
            commands.add().schedule_activity.seq = self._timers
        elif not any(job.HasField("query_workflow") for job in act.jobs):
            self._timers += 1
            commands.add().start_timer.seq = self._timers
        return completion

    def get_serialization_context(self, command_info: Any) -> Any: ...

    def get_external_store_context(self, command_info: Any) -> Any: ...

    def get_info(self) -> Any: ...


@pytest.fixture
def evicted() -> list[str]:
    """The runs that the guard has had evicted."""
    return []


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch, evicted: list[str]) -> WorkflowInstance:
    """A guarded instance."""

    monkeypatch.setattr(UnsandboxedWorkflowRunner, "create_instance", lambda _runner, _details: Instance())
    guard = QueryGuard()
    bridge = SimpleNamespace(request_workflow_eviction=evicted.append)
    guard.watch(SimpleNamespace(_bridge_worker=bridge))  # type: ignore[arg-type] # the guard needs no more of it
    details: Any = SimpleNamespace(info=SimpleNamespace(run_id="run"))
    return guard.create_instance(details)


def make_activation(
    job: str, length: int, size: int, *, replaying: bool = False, started_at: int = 1, query_id: str = "legacy_query"
) -> WorkflowActivation:
    """Make an activation with one job."""
    act = WorkflowActivation(history_length=length, history_size_bytes=size, is_replaying=replaying)
    act.timestamp.FromSeconds(started_at)
    variant = getattr(act.jobs.add(), job)
    variant.SetInParent()
    if job == "query_workflow":
        variant.query_id = query_id
    if job == "do_update":
        variant.protocol_instance_id = "new"
    return act


def is_failed(
    instance: WorkflowInstance, *activation: Any, fails: str | None = None, cancels: bool = False, **fields: Any
) -> bool:
    Instance.fails, Instance.cancels = fails, cancels
    completion = instance.activate(make_activation(*activation, **fields))
    return bool(completion.failed.failure.message == QUERY_AHEAD)


def test_only_the_thread_that_runs_the_workflow_is_named(
    guarded: WorkflowInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK interrupts it. Before and after it is somebody else's, such as the event loop's."""
    seen: list[int | None] = []
    activate = Instance.activate

    def look(self: Instance, act: WorkflowActivation) -> WorkflowActivationCompletion:
        seen.append(guarded.get_thread_id())
        if len(seen) == 2:
            raise RuntimeError("the activation fails")
        return activate(self, act)

    monkeypatch.setattr(Instance, "activate", look)
    assert guarded.get_thread_id() is None
    guarded.activate(make_activation("initialize_workflow", 3, 500))
    assert guarded.get_thread_id() is None
    with pytest.raises(RuntimeError):
        guarded.activate(make_activation("fire_timer", 8, 900))
    assert guarded.get_thread_id() is None
    assert seen == [threading.get_ident()] * 2


def test_tasks_and_queries_pass(guarded: WorkflowInstance, evicted: list[str]) -> None:
    """Tasks with their own history, several activations of one, queries after them, replays and evictions pass."""
    assert not is_failed(guarded, "initialize_workflow", 3, 500)
    assert not is_failed(guarded, "fire_timer", 8, 900)
    assert not is_failed(guarded, "resolve_activity", 8, 900)
    assert not is_failed(guarded, "query_workflow", 8, 900, replaying=True)
    # The task's end, and its two timers.
    assert not is_failed(guarded, "query_workflow", 11, 900, replaying=True)
    assert not is_failed(guarded, "do_update", 13, 1300)
    assert not is_failed(guarded, "remove_from_cache", 14, 0)
    assert not evicted


def test_a_task_that_takes_the_place_of_a_dropped_one_passes(guarded: WorkflowInstance) -> None:
    """The server drops a task that only rejects an update: the next task has its events' ids."""
    assert not is_failed(guarded, "do_update", 13, 1300, fails="new")
    assert not is_failed(guarded, "do_update", 13, 1300)
    assert not is_failed(guarded, "do_update", 17, 1500, fails="new")
    assert not is_failed(guarded, "query_workflow", 15, 1500, replaying=True)
    assert not is_failed(guarded, "do_update", 17, 1500)


def test_a_query_with_events_of_no_task_evicts_the_workflow(guarded: WorkflowInstance, evicted: list[str]) -> None:
    """The server may drop the task whose events the query has: their ids then go to events that would be skipped."""
    assert not is_failed(guarded, "do_update", 257, 62131, replaying=True)
    assert not is_failed(guarded, "query_workflow", 259, 62131, replaying=True)
    assert not evicted
    assert not is_failed(guarded, "query_workflow", 261, 62131, replaying=True, query_id="of a task")
    assert not evicted
    assert not is_failed(guarded, "query_workflow", 261, 62131, replaying=True)
    assert evicted == ["run"]


def test_the_first_query_after_a_takeover_fails(guarded: WorkflowInstance) -> None:
    """The task may be that of another worker, whose events the query has brought; the next one is this worker's."""
    assert not is_failed(guarded, "initialize_workflow", 3, 182, replaying=True)
    assert not is_failed(guarded, "fire_timer", 8, 900)
    assert not is_failed(guarded, "resolve_activity", 8, 900)
    assert not is_failed(guarded, "query_workflow", 8, 900, replaying=True, query_id="of the task itself")
    assert is_failed(guarded, "query_workflow", 8, 900, replaying=True)
    assert not is_failed(guarded, "do_update", 14, 1300)
    assert not is_failed(guarded, "query_workflow", 14, 1300, replaying=True)


def test_tasks_and_queries_in_turn_pass_after_a_takeover(guarded: WorkflowInstance, evicted: list[str]) -> None:
    """A query that was answered after the replay shows that the workflow was there before its first task."""
    assert not is_failed(guarded, "initialize_workflow", 3, 182, replaying=True)
    assert not is_failed(guarded, "query_workflow", 5, 182, replaying=True)
    for turn in range(1, 5):
        assert not is_failed(guarded, "fire_timer", 5 + 8 * turn, 500 * turn)
        assert not is_failed(guarded, "query_workflow", 5 + 8 * turn, 500 * turn, replaying=True)
    assert not evicted


def test_a_task_whose_events_a_query_has_brought_fails(guarded: WorkflowInstance) -> None:
    """Its update comes after the timer, and a replay would handle it before."""
    assert not is_failed(guarded, "fire_timer", 272, 66135)
    assert not is_failed(guarded, "query_workflow", 272, 66135, replaying=True)
    assert is_failed(guarded, "do_update", 272, 66135)


def test_events_without_a_new_task_fail_the_query(guarded: WorkflowInstance) -> None:
    """The history is longer, but its size is that of the task before: a query has brought the events."""
    assert not is_failed(guarded, "do_update", 51, 5092)
    assert is_failed(guarded, "fire_timer", 56, 5092)
    assert not is_failed(guarded, "query_workflow", 56, 5092, replaying=True)


def test_a_task_that_starts_with_the_end_of_the_one_before_passes(guarded: WorkflowInstance) -> None:
    """The server counts its size before the results of the task before are written; its time is its own."""
    assert not is_failed(guarded, "do_update", 41, 10533, started_at=1)
    assert not is_failed(guarded, "resolve_activity", 50, 10533, started_at=2)


def test_a_task_that_was_lost_fails_the_next_one(guarded: WorkflowInstance) -> None:
    """After a task with a timer come its completion, the timer, and the next task: four events and not three."""
    assert not is_failed(guarded, "do_update", 24, 2265)
    assert not is_failed(guarded, "fire_timer", 32, 3030)
    assert is_failed(guarded, "do_update", 35, 3175)


def test_an_accepted_update_that_fails_makes_an_event(guarded: WorkflowInstance) -> None:
    """After a task that ends an earlier update come its completion, the update's, the timer, and the next task."""
    assert not is_failed(guarded, "resolve_activity", 347, 99000, fails="of an earlier task")
    assert is_failed(guarded, "fire_timer", 351, 99500)


def test_a_timer_that_its_own_task_cancels_makes_no_event(guarded: WorkflowInstance) -> None:
    """An activity beside it does: after the task come its completion, the activity, the signal and the next task."""
    assert not is_failed(guarded, "do_update", 24, 2265)
    assert not is_failed(guarded, "resolve_activity", 24, 2265, cancels=True)
    assert not is_failed(guarded, "signal_workflow", 29, 2500)
    assert not is_failed(guarded, "fire_timer", 34, 2700, cancels=True)
    assert is_failed(guarded, "signal_workflow", 38, 2900)


def test_a_task_that_a_query_has_brought_fails_when_it_begins_again(guarded: WorkflowInstance) -> None:
    """What the workflow did at the earlier time, a replay would do at the later one."""
    assert not is_failed(guarded, "resolve_activity", 350, 99000, started_at=1)
    assert not is_failed(guarded, "query_workflow", 350, 99000, replaying=True)
    assert is_failed(guarded, "resolve_activity", 350, 99000, started_at=2)


SEEN = Cached(length=10, size=900, started_at=10**9, made=("timer 1", "update"), is_written=True, tasks_run=2)
"""A workflow that has run a task, which has made two events."""
QUERIED = replace(SEEN, is_queried=True)
UNSURE = replace(QUERIED, is_written=False)
TAKEN_OVER = Cached(length=10, size=900, started_at=10**9, is_replayed=True, tasks_run=1)


@pytest.mark.parametrize(
    ("cached", "act", "verdict"),
    [
        (Cached(), make_activation("initialize_workflow", 3, 0), "pass"),
        # New events with the size and the time of the task before.
        (SEEN, make_activation("fire_timer", 15, 900), "fail"),
        (UNSURE, make_activation("fire_timer", 11, 900), "fail"),
        (SEEN, make_activation("resolve_activity", 15, 901), "pass"),
        (SEEN, make_activation("resolve_activity", 15, 900, started_at=2), "pass"),
        (replace(UNSURE, size=0), make_activation("fire_timer", 11, 0), "pass"),
        # The same task goes on.
        (SEEN, make_activation("do_update", 10, 900, started_at=2), "pass"),
        (QUERIED, make_activation("resolve_activity", 10, 900), "pass"),
        (QUERIED, make_activation("resolve_activity", 10, 900, started_at=2), "fail"),
        *((QUERIED, make_activation(job, 10, 900), "fail") for job in ("do_update", "signal_workflow", "fire_timer")),
        (UNSURE, make_activation("do_update", 10, 900, started_at=2), "pass"),
        # Between two tasks: the end of the first, two events that it made, what came, and two events of the second.
        (SEEN, make_activation("do_update", 14, 1000), "fail"),
        (SEEN, make_activation("do_update", 15, 1000), "pass"),
        (SEEN, make_activation("signal_workflow", 15, 1000), "fail"),
        (SEEN, make_activation("fire_timer", 16, 1000), "pass"),
        (SEEN, make_activation("do_update", 9, 1000), "fail"),
        (UNSURE, make_activation("do_update", 9, 1000), "pass"),
        # Queries without a task.
        (TAKEN_OVER, make_activation("query_workflow", 10, 900), "fail"),
        (replace(TAKEN_OVER, tasks_run=0), make_activation("query_workflow", 10, 900), "pass"),
        (replace(TAKEN_OVER, tasks_run=2), make_activation("query_workflow", 10, 900), "pass"),
        (replace(TAKEN_OVER, is_replayed=False), make_activation("query_workflow", 10, 900), "pass"),
        (SEEN, make_activation("query_workflow", 13, 900), "pass"),
        (SEEN, make_activation("query_workflow", 14, 900), "evict"),
        # A task's own queries, and evictions.
        (TAKEN_OVER, make_activation("query_workflow", 14, 900, query_id="of the task"), "pass"),
        (QUERIED, make_activation("remove_from_cache", 14, 900), "pass"),
    ],
)
def test_an_activation_is_judged_by_what_is_known(cached: Cached, act: WorkflowActivation, verdict: str) -> None:
    """One that is out of order fails; a query that may have brought events of a task that is dropped evicts."""
    assert cached.judge(act) == verdict


TIMED = Cached(length=15, size=1000, started_at=2 * 10**9, made=("timer 7",), is_written=True, tasks_run=3)
"""The workflow after another task, which has started a timer."""
NEW_TASK: Any = {"length": 15, "size": 1000, "started_at": 2}


@pytest.mark.parametrize(
    ("cached", "act", "noted"),
    [
        (SEEN, make_activation("fire_timer", **NEW_TASK), TIMED),
        (QUERIED, make_activation("fire_timer", **NEW_TASK), TIMED),
        (
            replace(TIMED, made=("timer 6",), is_queried=True),
            make_activation("resolve_activity", **NEW_TASK),
            replace(TIMED, made=("timer 6", "timer 7")),
        ),
        (
            SEEN,
            make_activation("fire_timer", **NEW_TASK, replaying=True),
            replace(TIMED, is_written=False, is_replayed=True, tasks_run=2),
        ),
        (
            replace(SEEN, is_replayed=True, tasks_run=0),
            make_activation("fire_timer", **NEW_TASK),
            replace(TIMED, is_replayed=True, tasks_run=1),
        ),
        (replace(SEEN, is_replayed=True), make_activation("query_workflow", 99, 0), QUERIED),
        (TAKEN_OVER, make_activation("query_workflow", 99, 0, query_id="of the task"), TAKEN_OVER),
        (QUERIED, make_activation("remove_from_cache", 99, 0), QUERIED),
    ],
)
def test_what_an_activation_shows_is_noted(cached: Cached, act: WorkflowActivation, noted: Cached) -> None:
    """A task replaces what was known of the one before; a query is noted, and nothing of its history."""
    completion = WorkflowActivationCompletion()
    completion.successful.commands.add().start_timer.seq = 7
    assert cached.note(act, completion) == noted


@pytest.mark.parametrize(
    ("responses", "made", "is_written"),
    [
        (("rejected",), (), False),
        (("accepted",), ("update",), True),
        (("accepted", "rejected"), ("update", "update"), True),
        (("accepted", "completed"), ("update", "update"), True),
    ],
)
def test_only_an_update_that_is_refused_makes_no_event(
    responses: tuple[str, ...], made: tuple[str, ...], is_written: bool
) -> None:
    """The server may write nothing of its task. An accepted update that fails later is `rejected`, too."""
    completion = WorkflowActivationCompletion()
    for kind in responses:
        response = completion.successful.commands.add().update_response
        response.protocol_instance_id = "new"
        getattr(response, kind).SetInParent()
    noted = Cached().note(make_activation("do_update", **NEW_TASK), completion)
    assert (noted.made, noted.is_written) == (made, is_written)


class CountingGuard(QueryGuard):
    """A guard that counts the instances that it makes."""

    made = 0

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self.made += 1
        return super().create_instance(det)


@workflow.defn(sandboxed=False)
class Idle:
    """Answers queries."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def answer(self) -> int:
        return 42


async def test_a_worker_evicts_a_workflow(stack: Stack) -> None:
    """The next query replays the workflow's history in a new instance."""
    client, queue, guard = stack.clew.temporal, f"queue-{uuid.uuid4().hex}", CountingGuard()
    worker = Worker(client, task_queue=queue, workflows=[Idle], unsandboxed_workflow_runner=guard)
    guard.watch(worker)
    async with worker:
        handle = await client.start_workflow(Idle.run, id=uuid.uuid4().hex, task_queue=queue)
        assert await handle.query(Idle.answer) == 42
        guard._evict(handle.result_run_id or "")
        assert await handle.query(Idle.answer) == 42
        assert guard.made == 2
        await handle.terminate()


@pytest.mark.slow
async def test_a_query_shows_nothing_of_another_workers_task(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost worker has begun a task. A query brings its events to the next worker, and waits for the next task."""
    failed: list[WorkflowActivationCompletion] = []
    make_failure = query_ahead._fail

    def fail() -> WorkflowActivationCompletion:
        failed.append(make_failure())
        return failed[-1]

    monkeypatch.setattr(query_ahead, "_fail", fail)
    for _ in range(ROUNDS):
        if await read_in_another_workers_task(stack, failed):
            break
    assert failed


async def read_in_another_workers_task(stack: Stack, failed: list[WorkflowActivationCompletion]) -> bool:
    """Read a session while its newest task is a lost worker's. Returns False if that worker got the query instead."""
    clew = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    async with run_rolling_worker(stack, task_queue=clew.task_queue):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("hello")
    handle, service = clew.temporal.get_workflow_handle(session.id), clew.temporal.workflow_service
    reading = asyncio.create_task(session.entries())
    # Meanwhile the query reaches the server, which dispatches it because there is no task.
    for _ in range(10):
        await handle.describe()
    await handle.signal("steer", {"content": "more"})
    queue = TaskQueue(name=clew.task_queue)
    taken = await service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace="default", task_queue=queue, identity="lost")
    )
    if taken.HasField("query"):
        reading.cancel()
        await handle.terminate()
        return False
    async with run_rolling_worker(stack, task_queue=clew.task_queue):
        await wait_until(lambda: failed or reading.done())
        if not failed:
            # The query came to the server after the task, and was answered after its timeout.
            await handle.terminate()
            return False
        await service.respond_workflow_task_failed(
            RespondWorkflowTaskFailedRequest(namespace="default", task_token=taken.task_token, identity="lost")
        )
        seen = await reading
    async with run_rolling_worker(stack, task_queue=clew.task_queue):
        await session.ask("and now?")
        entries = await session.entries()
        assert [entry.as_dict() for entry in seen] == [entry.as_dict() for entry in entries[: len(seen)]]
        await session.close()
    return True


@pytest.mark.slow
async def test_a_full_cache_refuses_a_query_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker without a change evicts sessions and replays them. The Python client's readers do not notice."""
    monkeypatch.setattr(assembly, "Worker", partial(Worker, max_cached_workflows=2))
    async with run_rolling_worker(stack) as clew:
        model = stack.add_model("fine")
        sessions = [await clew.open(make_id(), model=model) for _ in range(4)]
        request = QueryWorkflowRequest(namespace="default", query=WorkflowQuery(query_type="entries"))
        refused = set()
        for number in range(3):
            for session in sessions:
                await session.configure(metadata={"number": str(number)})
                assert (await session.entries())[-1].kind == "config"
                await session.configure(metadata={"again": str(number)})
        for session in sessions:
            await session.configure(metadata={"number": "last"})
            request.execution.workflow_id = session.id
            try:
                await clew.temporal.workflow_service.query_workflow(request)
            except RPCError as error:
                refused.add(error.message)
            await clew.temporal.workflow_service.query_workflow(request)
            await session.close()
        assert refused == {QUERY_AHEAD}


@pytest.mark.slow
@pytest.mark.long
async def test_a_paused_worker_leaves_histories_that_can_be_replayed(stack: Stack) -> None:
    """A worker is stopped several times under messages and queries: every history is replayed."""
    queue = f"queue-{uuid.uuid4().hex}"
    clew = Clew(stack.clew.temporal, queue)
    async with run_worker_process(stack, queue) as worker:
        sessions = [
            await open_session_on(stack, queue, lambda _body: Reply("fine", delay_seconds=0.3)) for _ in range(4)
        ]

        async def use(session: Session) -> None:
            while True:
                with suppress(ClewError, TimeoutError):
                    async with asyncio.timeout(5):
                        await session.message("and?", on_busy="queue")
                await asyncio.sleep(0.3)

        async def look(session: Session) -> None:
            while True:
                with suppress(ClewError, TimeoutError):
                    async with asyncio.timeout(5):
                        await session.status()
                await asyncio.sleep(0.02)

        tasks = [asyncio.create_task(call(session)) for session in sessions for call in (use, look)]
        for _ in range(STOPS):
            await asyncio.sleep(1.5)
            os.kill(worker.pid, signal.SIGSTOP)
            await asyncio.sleep(4)
            os.kill(worker.pid, signal.SIGCONT)
        await asyncio.sleep(2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in sessions:
            for run in await list_runs(clew, session.id):
                await replay(client=clew, query=f"RunId = '{run}'")
