"""Short workflow activations run on the event loop's thread, all others on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob

from clew_activities.worker.process import WorkerLoop
from clew_workflows.temporal_faults.short_activations import SHORT_BYTES, WorkflowExecutor

_trace = ContextVar("_trace", default="none")


@pytest.fixture(params=[asyncio.new_event_loop, WorkerLoop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Run on asyncio's event loop and on the worker's."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@pytest.fixture
def executor() -> Iterator[WorkflowExecutor]:
    with WorkflowExecutor(2, "test-workflow") as executor:
        yield executor


def activate(act: WorkflowActivation) -> tuple[int, str, str]:
    """Do what the SDK does: run an event loop of its own in the thread, and leave none."""
    loop = asyncio.new_event_loop()
    try:
        asyncio._set_running_loop(loop)
        if act.run_id == "fails":
            raise LookupError(act.run_id)
        return threading.get_ident(), act.run_id, _trace.get()
    finally:
        asyncio._set_running_loop(None)
        loop.close()


def make_activation(size: int = 0) -> WorkflowActivation:
    act = WorkflowActivation(run_id="r")
    act.jobs.add().do_update.name = "n" * size
    return act


def make_replay() -> WorkflowActivation:
    act = make_activation()
    act.is_replaying = True
    return act


def make_query() -> WorkflowActivation:
    job = WorkflowActivationJob()
    job.query_workflow.query_type = "status"
    return WorkflowActivation(run_id="r", jobs=[job])


def test_a_short_activation_runs_on_the_thread_of_the_loop(
    runner: asyncio.Runner, executor: WorkflowExecutor
) -> None:
    """The event loop is the running one again after it, and its code sees none of the context variables."""

    async def run() -> None:
        loop, own = asyncio.get_running_loop(), threading.get_ident()
        _trace.set("of the caller")
        for size in (0, SHORT_BYTES - 100):
            act = make_activation(size)
            assert await loop.run_in_executor(executor, activate, act) == (own, "r", "none")
            assert asyncio.get_running_loop() is loop

    runner.run(run())


@pytest.mark.parametrize(
    "make", [make_replay, make_query, lambda: make_activation(SHORT_BYTES)], ids=["replay", "query", "large"]
)
def test_what_may_take_long_runs_on_a_thread_of_its_own(
    runner: asyncio.Runner, executor: WorkflowExecutor, make: Callable[[], WorkflowActivation]
) -> None:
    """The event loop goes on meanwhile."""
    goes_on = threading.Event()

    def wait(act: WorkflowActivation) -> tuple[int, str, str]:
        assert goes_on.wait(10), "the event loop waits for the activation"
        return activate(act)

    async def run() -> None:
        future = asyncio.get_running_loop().run_in_executor(executor, wait, make())
        asyncio.get_running_loop().call_soon(goes_on.set)
        thread, run_id, trace = await future
        assert (run_id, trace) == ("r", "none")
        assert thread != threading.get_ident()

    runner.run(run())


def test_an_error_reaches_the_caller(runner: asyncio.Runner, executor: WorkflowExecutor) -> None:
    """It is raised where the activation is awaited, and the event loop goes on."""

    async def run() -> None:
        loop, act = asyncio.get_running_loop(), make_activation()
        act.run_id = "fails"
        with pytest.raises(LookupError, match="fails"):
            await loop.run_in_executor(executor, activate, act)
        assert asyncio.get_running_loop() is loop

    runner.run(run())


def test_a_cancelled_activation_is_not_run(runner: asyncio.Runner, executor: WorkflowExecutor) -> None:
    """That is so while it waits for its turn, as on a thread."""
    ran: list[str] = []

    async def run() -> None:
        future = executor.submit(lambda act: ran.append(act.run_id), make_activation())
        assert future.cancel()
        # The next one has its turn after it.
        await asyncio.get_running_loop().run_in_executor(executor, activate, make_activation())
        with pytest.raises(CancelledError):
            future.result()

    runner.run(run())
    assert ran == []
