"""Each workaround is still needed: a test fails here when temporalio or the server no longer has its fault."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import signal
import sys
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle, WorkflowUpdateHandle
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, Worker, WorkflowReplayResult

import clew_workflows.temporal_faults
from clew.local.temporal import temporal_command
from tests.support.stack import Stack

UPSTREAM = Path(__file__).parents[3] / "docs" / "upstream"
REPRODUCTIONS = {
    "dropped_first_task": "task_commands",
    "joined_tasks": "task_commands",
    "slow_timers": "slow_timers",
    "storage_references": "storage_references",
    "failure_details": "failure_details",
    "query_ahead": "query_ahead",
    "query_buffer": "query_buffer",
    "updates_in_flight": "updates_in_flight",
    "cancelled_calls": "cancelled_calls",
    "exit_crash": "exit_crash",
}
"""The workaround of each fault that has a reproduction."""
NO_PUBLIC_WAY = {
    "wrapped_converter",
    "refused_updates",
    "started_workflows",
    "deadlock_timeout",
    "stuck_workflows",
    "short_activations",
    "replayed_state",
}
"""The workarounds for what temporalio has no public way to do: `no_public_way.md`."""
TRIES = 3
"""Runs of a reproduction, some of which depend on chance, after which the fault is gone."""
TRY_SECONDS = 180
"""The longest reproduction takes some 80 seconds."""
# A crash of the SDK at the exit (exit_crash) would hide the exit code of the reproduction.
RUN = """
import os, runpy, sys, traceback
sys.argv = sys.argv[1:]
code = 2
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as ended:
    code = ended.code
except BaseException:
    traceback.print_exc()
sys.stdout.flush()
os._exit(code)
"""


def fail_as_gone(fault: str, module: str) -> None:
    pytest.fail(
        f"temporalio no longer has the fault {fault}: delete temporal_faults/{module}.py, as its docstring says"
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("fault", REPRODUCTIONS)
async def test_the_fault_is_still_there(fault: str, tmp_path: Path) -> None:
    """The reproduction ends with exit code 1; with another one than 0 and 1 it has failed itself."""
    log = tmp_path / "reproduction.log"
    for _ in range(TRIES):
        # A file, and a group: a server or a worker that a crash leaves behind would keep a pipe open.
        with log.open("w+") as output:
            running = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", RUN, UPSTREAM / f"{fault}.py", temporal_command()),
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(TRY_SECONDS):
                await running.wait()
        except TimeoutError:
            pytest.fail(f"the reproduction has not ended within {TRY_SECONDS} seconds:\n{log.read_text()}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        assert running.returncode in (0, 1), log.read_text()
        if running.returncode == 1:
            return
    fail_as_gone(fault, REPRODUCTIONS[fault])


def test_each_workaround_has_a_test_and_a_page() -> None:
    """Here, and in docs/upstream, whose pages the docstrings name."""
    folder = Path(clew_workflows.temporal_faults.__file__).parent
    modules = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("[!_]*.py")}
    del modules["private_parts"]
    assert set(REPRODUCTIONS.values()) | NO_PUBLIC_WAY == set(modules)
    pages = {f"docs/upstream/{fault}.md": module for fault, module in REPRODUCTIONS.items()}
    for page, module in pages.items():
        assert page in modules[module]
        assert (UPSTREAM / Path(page).name).exists()
    for module in NO_PUBLIC_WAY:
        assert f"docs/upstream/no_public_way.md#{module}" in modules[module]
    for module, text in modules.items():
        assert "\nSeen in: " in text, module
        assert "\nCan go: when " in text, module


def list_public(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_a_converter_is_still_wrapped() -> None:
    if isinstance(DataConverter.default.payload_converter, DataConverter.default.payload_converter_class):
        fail_as_gone("a worker's converter cannot be read", "wrapped_converter")


def test_an_update_still_hides_its_outcome() -> None:
    if list_public(WorkflowUpdateHandle) != {"id", "workflow_id", "workflow_run_id", "result"}:
        fail_as_gone("an update's handle does not say that it has an outcome", "refused_updates")


def test_a_handle_still_hides_whether_it_has_started_its_workflow() -> None:
    if any("started" in name for name in list_public(WorkflowHandle)):
        fail_as_gone("a handle does not say whether its workflow is new", "started_workflows")


def test_a_worker_still_has_no_option_for_deadlocks() -> None:
    if any("deadlock" in name for name in inspect.signature(Worker).parameters):
        fail_as_gone("the time of a deadlock cannot be set", "deadlock_timeout")


def test_a_worker_still_hides_that_it_is_stuck() -> None:
    if any(word in name for word in ("evict", "stuck") for name in list_public(Worker)):
        fail_as_gone("a worker does not say that it cannot evict workflows", "stuck_workflows")


def test_a_replay_still_hides_its_workflow() -> None:
    fields = {field.name for field in dataclasses.fields(WorkflowReplayResult)}
    options = set(inspect.signature(Replayer.replay_workflow).parameters)
    if fields != {"history", "replay_failure"} or options != {"self", "history", "raise_on_replay_failure"}:
        fail_as_gone("a replayed workflow cannot be read", "replayed_state")


@workflow.defn(sandboxed=False)
class Quick:
    """Ends at once."""

    @workflow.run
    async def run(self) -> None: ...


async def test_a_short_activation_is_still_handed_over(stack: Stack) -> None:
    handed_over: list[Any] = []

    class Executor(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            handed_over.append(fn)
            return super().submit(fn, *args, **kwargs)

    client, queue = stack.clew.temporal, uuid.uuid4().hex
    with Executor(1) as executor:
        async with Worker(client, task_queue=queue, workflows=[Quick], workflow_task_executor=executor):
            await client.execute_workflow(Quick.run, id=uuid.uuid4().hex, task_queue=queue)
    if not handed_over:
        fail_as_gone("each activation is handed to a thread", "short_activations")
