"""Workers die and are stopped: the thread stays whole, and every request has one outcome."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clew import Clew, Session
from deploy.local import Reply, ToolCall, Worker, worker_process
from tests.conftest import World, last


@asynccontextmanager
async def worker(world: World, task_queue: str) -> AsyncIterator[Worker]:
    """A worker in a process of its own."""
    env = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": world.provider.base_url}
    address = world.server.address
    async with worker_process(address, env=env, tools=["tests.toolbox"], task_queue=task_queue) as running:
        yield running


async def open_on(world: World, task_queue: str, script: Any, **config: Any) -> Session:
    """A session that only the workers of one task queue serve."""
    clew = Clew(world.clew.temporal, task_queue)
    return await clew.open(f"test-{uuid.uuid4().hex}", model=world.model(script), **config)


async def shape(session: Session) -> list[str]:
    """The thread, an entry a word; its seqs have no gap."""
    entries = await session.entries()
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    return [entry.payload.get("role", entry.kind) for entry in entries]


async def test_a_model_call_survives_the_death_of_its_worker(world: World) -> None:
    """SIGKILL in the middle of a reply: another worker calls again, and one answer is committed."""
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        if called.is_set():
            return Reply("at last")
        called.set()
        return Reply("this will never be heard to its end " * 100, tokens_per_second=5)

    queue = f"queue-{uuid.uuid4().hex}"
    async with worker(world, queue) as first:
        session = await open_on(world, queue, script)
        request = await session.message("go")
        await called.wait()
        await first.kill()
        async with worker(world, queue):
            assert await request.answer() == "at last"
            assert await shape(session) == ["config", "user", "assistant", "run"]
            (answer,) = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
            assert answer.payload["recipe"]["attempt"] == 2


async def test_a_tool_call_survives_the_death_of_its_worker(world: World, tmp_path: Path) -> None:
    """SIGKILL in the middle of a tool: another worker runs it, and one result is committed."""

    def script(body: dict[str, Any]) -> Reply:
        if last(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("linger", {"folder": str(tmp_path)}),))
        return Reply(f"it was {last(body)['content']}")

    queue = f"queue-{uuid.uuid4().hex}"
    async with worker(world, queue) as first:
        session = await open_on(world, queue, script, tools=["linger"])
        request = await session.message("go")
        started = tmp_path / "started"
        while not started.exists():  # noqa: ASYNC110 - the tool runs in another process
            await asyncio.sleep(0.02)
        await first.kill()
        (tmp_path / "release").touch()
        async with worker(world, queue):
            assert await request.answer() == "it was released"
            assert await shape(session) == ["config", "user", "assistant", "tool", "assistant", "run"]
            assert started.read_text() == "begun\nbegun\n"


async def test_a_worker_that_is_stopped_finishes_what_it_runs(world: World) -> None:
    """SIGTERM in the middle of a reply: the reply is heard to its end, and nothing is called twice."""
    called = asyncio.Event()

    def script(_body: dict[str, Any]) -> Reply:
        called.set()
        return Reply("one two three four five six", tokens_per_second=4)

    queue = f"queue-{uuid.uuid4().hex}"
    async with worker(world, queue) as first, worker(world, queue):
        session = await open_on(world, queue, script)
        request = await session.message("go")
        await called.wait()
        stopping = asyncio.create_task(first.stop())
        assert await request.answer() == "one two three four five six"
        assert len(world.requests_to((await session.status()).model)) == 1
        await stopping
