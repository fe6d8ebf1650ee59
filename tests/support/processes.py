"""Processes: workers that tests kill, modules of the checkout that run to their end, and what is running."""

from __future__ import annotations

import os
import sys
import uuid
from asyncio import create_subprocess_exec, subprocess, timeout
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from clew import Clew, Session
from clew.local import Worker, worker_process
from clew_activities.model import validation_process
from tests.support.stack import GRACE, Stack

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def run_worker_process(stack: Stack, task_queue: str, **settings: str) -> AsyncIterator[Worker]:
    """Run a worker in a process of its own."""
    env = {**stack.environ, "CLEW_GRACE_SECONDS": f"{GRACE.seconds}", **settings}
    address = stack.server.address
    async with worker_process(address, env=env, tools=["tests.support.toolbox"], task_queue=task_queue) as running:
        yield running


async def open_session_on(stack: Stack, task_queue: str, script: Any, **config: Any) -> Session:
    """Open a session on the workers of one task queue."""
    clew = Clew(stack.clew.temporal, task_queue)
    return await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model(script), **config)


async def run_module(
    name: str, *arguments: str, seconds: float, typed: str = "", env: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a module with `typed` on its standard input; returns its exit status and its output.

    The environment is that of this process without the `TEMPORAL_` variables, plus `env`.

    Raises:
        TimeoutError: It ran longer than `seconds`; it has been killed.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}
    process = await create_subprocess_exec(
        *(sys.executable, "-m", name, *arguments),
        cwd=ROOT,
        env={**inherited, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with timeout(seconds):
            output, _ = await process.communicate(typed.encode())
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    return process.returncode, output.decode()


def list_validations(worker: int) -> list[str]:
    """List the process ids of a worker's validations, zombies included."""
    return list_children(worker, validation_process.__file__)


def list_children(worker: int, file: str) -> list[str]:
    """List the process ids of a worker's children that run a file, zombies included."""
    children = []
    for thread in Path(f"/proc/{worker}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended.
            children += (thread / "children").read_text().split()
    return [child for child in children if is_zombie(child) or file in read_command(child)]


def is_running(process: str) -> bool:
    """Whether a process exists and is no zombie."""
    return bool(read_command(process)) and not is_zombie(process)


def is_zombie(process: str) -> bool:
    """Whether a process has ended but its parent has not collected it yet."""
    return _read(process, "stat").rpartition(")")[2].split()[:1] == ["Z"]


def read_command(process: str) -> str:
    """Read the command line of a process; it is empty once the process has ended."""
    return _read(process, "cmdline")


def _read(process: str, file: str) -> str:
    try:
        return Path(f"/proc/{process}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
