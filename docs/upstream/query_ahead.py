"""Queries after a pause of the worker make histories that cannot be replayed: a minimal reproduction.

    python query_ahead.py [path of the `temporal` program]

Exit code 1: a history cannot be replayed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, Worker

QUEUE = "query-ahead"
WORKFLOWS, STOPS = 6, 8


@workflow.defn(sandboxed=False)
class Ticks:
    """A timer after another, and updates."""

    def __init__(self) -> None:
        self._ticks = self._updates = 0

    @workflow.run
    async def run(self) -> None:
        """Never returns."""
        while True:
            await workflow.sleep(2)
            self._ticks += 1

    @workflow.update
    async def put(self) -> int:
        """Count an update."""
        self._updates += 1
        return self._updates

    @workflow.query
    def count(self) -> int:
        """Count the ticks."""
        return self._ticks


async def serve(address: str) -> None:
    """Run the worker, in a process of its own."""
    client = await Client.connect(address)
    sticky = timedelta(seconds=2)
    async with Worker(client, task_queue=QUEUE, workflows=[Ticks], sticky_queue_schedule_to_start_timeout=sticky):
        await asyncio.Event().wait()


async def repeat(call: Callable[[], Awaitable[object]], pause: float, stopped: asyncio.Event) -> None:
    """Repeat a call. The client makes an error of a cancellation, which therefore ends no loop."""
    while not stopped.is_set():
        with suppress(Exception):
            async with asyncio.timeout(4):
                await call()
        await asyncio.sleep(random.uniform(0, pause))


async def replay(handle: WorkflowHandle[Ticks, None]) -> bool:
    """Replay a history; returns whether it can be."""
    try:
        await Replayer(workflows=[Ticks]).replay_workflow(await handle.fetch_history())
    except (RuntimeError, workflow.NondeterminismError) as error:
        print(str(error)[:250])
        return False
    return True


async def main(program: str | None) -> int:
    """Stop and continue the worker under updates and queries, and replay the histories."""
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        address = env.client.service_client.config.target_host
        worker = await asyncio.create_subprocess_exec(sys.executable, __file__, "serve", address)
        try:
            handles = [
                await env.client.start_workflow(Ticks.run, id=uuid.uuid4().hex, task_queue=QUEUE)
                for _ in range(WORKFLOWS)
            ]
            stopped = asyncio.Event()
            calls = [
                asyncio.create_task(repeat(call, pause, stopped))
                for handle in handles
                for call, pause in (
                    (lambda h=handle: h.query(Ticks.count), 0.1),
                    (lambda h=handle: h.execute_update(Ticks.put), 1),
                )
            ]
            for _ in range(STOPS):
                await asyncio.sleep(random.uniform(1, 3))
                os.kill(worker.pid, signal.SIGSTOP)
                await asyncio.sleep(random.uniform(2.5, 7))
                os.kill(worker.pid, signal.SIGCONT)
            await asyncio.sleep(3)
            stopped.set()
            await asyncio.gather(*calls)
            broken = [handle.id for handle in handles if not await replay(handle)]
        finally:
            worker.kill()
            await worker.wait()
    print(f"{len(broken)} of {WORKFLOWS} histories cannot be replayed")
    return 1 if broken else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(sys.argv[2]))
    else:
        sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None)))
