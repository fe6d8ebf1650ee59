"""Fixtures that all tests of a process share: a real Temporal server, a worker in this process, scripted models."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import httpx
import pytest
from temporalio.worker import _workflow

from clew import Clew
from clew.contract import TASK_QUEUE
from clew.local import TemporalServer, scripted_model, temporal_server
from clew.local.scripted import Script
from clew_activities.archive import Store
from clew_activities.tools.mcp import mcp_connection
from tests.support.cluster import find_cluster
from tests.support.examples import register_profiles
from tests.support.rolling import QUICK_ROLLOVERS
from tests.support.stack import Stack, serve
from tests.support.versions import QUICK_DRAINS
from tests.support.waiting import PATIENCE_SECONDS

TASK_SECONDS = 2
"""Most seconds of computing in a workflow task: the SDK's own limit of a task's time."""
_STALLED_SECONDS = 8
"""Seconds after which a task fails that waits. The server's limit is 10."""

register_profiles()
# Their assertions show the values that they compare, as those of test modules do.
pytest.register_assert_rewrite("tests.support.session_invariants", "tests.providers.scenarios")


def pytest_configure() -> None:
    """Restore SIGINT: a shell starts background processes with SIGINT ignored, and child processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Look for no garbage while the tests are collected: there is nearly none, and it took a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Take the collected tests, over a million objects, out of the garbage collection, and begin it again.

    Each full collection would go through them, and stop every thread of the process for a second.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show where the tasks of a test wait whose time is over."""
    report = yield
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout (>"):
        report.sections.append(("Tasks that wait", describe_tasks()))
    return report


@pytest.fixture
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give MCP servers the time to start that a busy machine needs."""
    monkeypatch.setattr(mcp_connection, "CONNECT_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(scope="session", autouse=True)
def patient_clients() -> None:
    """Give HTTP clients without a timeout of their own the time that a busy machine needs: 5 seconds by default."""
    default = httpx._config.DEFAULT_TIMEOUT_CONFIG
    default.connect = default.read = default.write = default.pool = PATIENCE_SECONDS


@pytest.fixture(scope="session", autouse=True)
def patient_workers() -> Iterator[None]:
    """Limit what workflow tasks of this process compute, instead of the time that passes, and their evictions.

    The SDK fails a workflow task that does not end within two seconds. On a busy machine so do threads that compute
    nothing. It only logs that a workflow has gone on although it was evicted, and tries again.
    """
    going_on: list[str] = []
    worker: Any = _workflow._WorkflowWorker
    running: Any = _workflow._RunningWorkflow
    make, activate = worker.__init__, running.activate

    def make_patient(self: Any, **options: Any) -> None:
        make(self, **options)
        # None: the SDK's debug mode has no limit.
        if self._deadlock_timeout_seconds is not None:
            self._deadlock_timeout_seconds = _STALLED_SECONDS

    def activate_and_measure(self: Any, activation: Any) -> Any:
        begun = time.thread_time()
        try:
            completion = activate(self, activation)
        except RuntimeError as error:
            if "Eviction processed" in str(error):
                going_on.append(str(error))
            raise
        if (seconds := time.thread_time() - begun) > TASK_SECONDS:
            raise RuntimeError(f"the workflow task has computed for {seconds:.1f} s")
        return completion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "__init__", make_patient)
        patch.setattr(running, "activate", activate_and_measure)
        yield
    assert not going_on


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Read each file of certificates once. Every HTTP client reads that of all authorities: 30 ms of computing."""
    make = ssl.create_default_context
    read = cache(lambda file: make(cafile=file))

    def make_or_share(*arguments: Any, **options: Any) -> ssl.SSLContext:
        return make(*arguments, **options) if arguments or options.keys() != {"cafile"} else read(options["cafile"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", make_or_share)
        yield


@pytest.fixture(scope="session")
async def stack(server: TemporalServer) -> AsyncIterator[Stack]:
    """Run a worker in this process that serves the toolbox and the scripted models.

    Nothing listens at the address of its provider `unreachable`.
    """
    scripts: dict[str, Script] = {}
    store = "memory://" if find_cluster() is None else server.store
    async with scripted_model(lambda body: scripts[body["model"]](body)) as provider:
        # Processes that share a cluster have models with the same names.
        queue = TASK_QUEUE if find_cluster() is None else f"queue-{uuid.uuid4().hex}"
        stack = Stack(
            await Clew.connect(server.address, task_queue=queue), server, provider, scripts, Store.from_url(store)
        )
        environ = {**stack.environ, "CLEW_PROVIDER_UNREACHABLE_BASE_URL": "http://127.0.0.1:1/v1"}
        async with serve(stack.clew, environ, store=stack.store):
            yield stack


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[TemporalServer]:
    """Run a Temporal server without its UI, or find the local cluster that these tests are to run on.

    `CLEW_STORE` points worker processes to its archive.
    """
    if cluster := find_cluster():
        yield cluster
        return
    async with AsyncExitStack() as exits:
        with pytest.MonkeyPatch.context() as patch:
            # With more threads than one, some of them always look for work: that takes an eighth of its computing.
            patch.setenv("GOMAXPROCS", "1")
            running = await exits.enter_async_context(
                temporal_server(ui=False, dynamic_config=QUICK_ROLLOVERS | QUICK_DRAINS)
            )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLEW_STORE", running.store)
            yield running


def describe_tasks() -> str:
    """Describe where each task of this process waits, from its own function to the innermost one."""
    tasks = [value for value in gc.get_objects() if type(value) is asyncio.Task and not value.done()]
    return "\n".join(f"{task.get_name()}: {' > '.join(_list_places(task.get_coro()))}" for task in tasks)


def _list_places(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:
            yield type(awaited).__name__
            return
        if frame := getattr(awaited, f"{kind}_frame"):
            yield f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
