"""Fixtures that all tests of a process share: a real Temporal server, a worker in this process, scripted models."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from clew import Clew
from clew.local import TemporalServer, scripted_model, temporal_server
from clew.local.scripted import Script
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.registry import load_tools
from clew_activities.worker import make_worker
from tests.support import toolbox
from tests.support.busy_machine import count_computing, freeze_collected, stop_collecting_garbage
from tests.support.examples import register_profiles
from tests.support.hanging import describe_tasks
from tests.support.rolling import QUICK_ROLLOVERS
from tests.support.stack import KEYS, Stack
from tests.support.versions import QUICK_DRAINS

register_profiles()
# Its assertions show the values that they compare, as those of test modules do.
pytest.register_assert_rewrite("tests.support.session_invariants")


def pytest_configure() -> None:
    """Restore SIGINT: a shell starts background processes with SIGINT ignored, and child processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Collect the tests in two thirds of the time."""
    stop_collecting_garbage()


def pytest_collection_finish() -> None:
    """Keep full garbage collections short."""
    freeze_collected()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show where the tasks of a test wait whose time is over."""
    report = yield
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout (>"):
        report.sections.append(("Tasks that wait", describe_tasks()))
    return report


@pytest.fixture(scope="session", autouse=True)
def patient_workers() -> Iterator[None]:
    """Let workers of this process wait for a busy machine."""
    with count_computing():
        yield


@pytest.fixture(scope="session")
async def stack(server: TemporalServer) -> AsyncIterator[Stack]:
    """Run a worker in this process that serves the toolbox and the scripted models.

    Nothing listens at the address of its provider `unreachable`.
    """
    scripts: dict[str, Script] = {}
    store = Store.from_url("memory://")
    async with scripted_model(lambda body: scripts[body["model"]](body)) as provider, make_http_client() as http:
        clew = await Clew.connect(server.address)
        worker = make_worker(
            clew.temporal,
            task_queue=clew.task_queue,
            providers=load_providers(
                {
                    "CLEW_PROVIDER_SCRIPTED_BASE_URL": provider.base_url,
                    "CLEW_PROVIDER_UNREACHABLE_BASE_URL": "http://127.0.0.1:1/v1",
                }
            ),
            tools=load_tools([toolbox.__name__]),
            http=http,
            store=store,
            keys=KEYS,
        )
        async with worker:
            yield Stack(clew, server, provider, scripts, store)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[TemporalServer]:
    """Run a Temporal server without its UI; `CLEW_STORE` points worker processes to its archive."""
    async with temporal_server(ui=False, dynamic_config=QUICK_ROLLOVERS | QUICK_DRAINS) as running:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLEW_STORE", running.store)
            yield running
