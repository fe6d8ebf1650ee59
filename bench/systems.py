"""Clew and the floor as `bench.load` measures them: one worker process each, on one server."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.service import RPCError

from bench.floor import QUEUE, READY, Floor, measure_memory
from bench.least_agent import LeastAgent, read_answer
from clew import Clew, ContextPolicy
from clew.local import worker_process
from clew.local.child import child_process
from clew.session.transport import ANSWER_SECONDS, is_rollover

Turn = Callable[[str], Awaitable[object]]
"""Sends one message to one session and waits for the answer."""

TICKS = os.sysconf("SC_CLK_TCK")
MOST_MEMORY = 12_000_000_000
"""Most bytes of data of a worker process, stacks of threads included: one that leaks ends itself, not the machine."""
MOST_UPDATES = 1_900
"""Most updates of a workflow run of the floor's; the server takes 2 000."""
START_SECONDS = 60.0
RETRY_SECONDS = 0.05


@dataclass
class Process:
    """A worker process.

    Attributes:
        pid: Its id.
        start_seconds: Seconds from its start until it was ready.
    """

    pid: int
    start_seconds: float

    def measure_cpu(self) -> float:
        """Measure the seconds of CPU time so far, of user and system."""
        return sum(_read_stat(self.pid)[11:13]) / TICKS

    def measure_memory(self) -> int:
        """Measure the resident bytes."""
        return measure_memory(self.pid)


@dataclass(frozen=True)
class Servers:
    """Processes with their children: those of a server that all systems share.

    Attributes:
        pids: The ids of the processes.
    """

    pids: tuple[int, ...]

    def measure_cpu(self) -> float:
        """Measure the seconds of CPU time so far, also that of children that have ended."""
        parents = {pid: _read_stat(pid)[1] for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
        tree, found = set[int](), set(self.pids)
        while found:
            tree |= found
            found = {pid for pid, parent in parents.items() if parent in found}
        return sum(sum(_read_stat(pid)[11:15]) for pid in tree) / TICKS


def _read_stat(pid: int) -> list[int]:
    """Read the numbers that follow the name and the state of a process; zeros if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [0] * 50
    return [0, *map(int, fields[1:])]


@dataclass
class System:
    """A system that serves sessions.

    Attributes:
        name: Its name in tables.
        client: Connected to the server.
        process: Its worker.
        open: Opens a session and returns how a turn of it is taken.
        get_handle: Gets the workflow of a session.
    """

    name: str
    client: Client
    process: Process
    open: Callable[[str], Awaitable[Turn]]
    sessions: dict[str, Turn] = field(default_factory=dict)

    async def list_turns(self, prefix: str, count: int) -> list[Turn]:
        """Open sessions `prefix-0` and so on, those that are not open yet, and return their turns."""
        names = [f"{prefix}-{number}" for number in range(count)]
        gate = asyncio.Semaphore(16)

        async def open_one(name: str) -> None:
            async with gate:
                self.sessions[name] = turn = await self.open(name)
                await turn("the first message")

        await asyncio.gather(*(open_one(name) for name in names if name not in self.sessions))
        return [self.sessions[name] for name in names]

    def get_handle(self, name: str) -> WorkflowHandle[Any, Any]:
        """Get the workflow of a session."""
        return self.client.get_workflow_handle(f"{self.name}-{name}")


@asynccontextmanager
async def run_clew(address: str, model_url: str, store: str) -> AsyncIterator[System]:
    """Run a worker of Clew's."""
    env = {"CLEW_STORE": store, "CLEW_PROVIDER_BENCH_BASE_URL": model_url}
    clew = await Clew.connect(address)

    async def open_session(name: str) -> Turn:
        policy = ContextPolicy.short_context()
        return (await clew.open(f"clew-{name}", model="bench:any", context_policy=policy)).ask

    begun = time.perf_counter()
    async with worker_process(address, env=env) as worker:
        process = Process(worker.pid, time.perf_counter() - begun)
        _limit_memory(process)
        yield System("clew", clew.temporal, process, open_session)


@asynccontextmanager
async def run_floor(address: str, model_url: str, cached: int) -> AsyncIterator[tuple[System, ...]]:
    """Run a worker of the floor's.

    The second system is the least agent, which the same worker serves, the third one the floor without calls of the
    model's server, the fourth one with the activity on a task queue of its own. The worker keeps so many workflows in
    its cache.
    """
    client = await Client.connect(address)
    begun = time.perf_counter()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="clew-least-agent-", ignore_cleanup_errors=True))
        places = {"TEMPORAL_ADDRESS": address, "MODEL_URL": model_url, "FOLDER": folder}
        env = {**os.environ, **places, "CACHED": str(cached)}
        command = [sys.executable, "-m", "bench.floor", "serve"]
        child = await stack.enter_async_context(child_process("floor", command, env=env))

        async def ready() -> bool:
            return READY in child.log.read_text(errors="replace")

        await child.wait_until(ready, START_SECONDS)
        process = Process(child.pid, time.perf_counter() - begun)
        _limit_memory(process)
        yield (
            System("floor", client, process, partial(_open_floor, client, "floor", Floor.ask_model)),
            System("least-agent", client, process, partial(_open_least_agent, client)),
            System("silent", client, process, partial(_open_floor, client, "silent", Floor.ask)),
            System("apart", client, process, partial(_open_floor, client, "apart", Floor.ask_apart)),
        )


async def _open_floor(client: Client, prefix: str, update: Any, session: str) -> Turn:
    handle = await client.start_workflow(Floor.run, id=f"{prefix}-{session}", task_queue=QUEUE)
    taken = 0

    async def take_turn(question: str) -> object:
        nonlocal handle, taken
        taken += 1
        if taken % MOST_UPDATES == 0:
            # The floor keeps nothing that another workflow would lack.
            await handle.terminate()
            handle = await client.start_workflow(Floor.run, id=f"{prefix}-{session}", task_queue=QUEUE)
        return await (await _send_update(handle, update, question)).result()

    return take_turn


async def _open_least_agent(client: Client, session: str) -> Turn:
    handle = await client.start_workflow(LeastAgent.run, [], id=f"least-agent-{session}", task_queue=QUEUE)

    async def take_turn(question: str) -> object:
        update = await _send_update(handle, LeastAgent.ask, question)
        await update.result()
        return await read_answer(client, handle.id, update.workflow_run_id)

    return take_turn


async def _send_update(handle: WorkflowHandle[Any, Any], update: Any, question: str) -> WorkflowUpdateHandle[Any]:
    """Send an update, and return when it has been answered."""
    update_id = uuid.uuid4().hex
    while True:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await handle.start_update(
                    update, question, id=update_id, wait_for_stage=WorkflowUpdateStage.COMPLETED
                )
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            # The SDK raises its own error for a cancellation, too.
            if (task := asyncio.current_task()) and task.cancelling():
                raise asyncio.CancelledError from None
            # The answer may be lost while the least agent continues as new: the same id is answered once a run.
            continue
        except RPCError as error:
            # With many sessions the server refuses updates while it repeats a workflow task. The least agent
            # continues as new.
            if not is_rollover(error):
                raise
        await asyncio.sleep(RETRY_SECONDS)


def _limit_memory(process: Process) -> None:
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
