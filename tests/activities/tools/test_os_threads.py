"""Where tools run: whatever one of them does, the worker's loop and the other tools go on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from clew_activities.tools.os_threads import ThreadedCall, ToolThreads, ToolThreadSettings, TooManyAbandoned
from tests.support.waiting import PATIENCE_SECONDS

HERE = __file__

SETTINGS = ToolThreadSettings(max_abandoned=2, cleanup_seconds=0.05)


def name_call(name: str = "it") -> ThreadedCall:
    return ThreadedCall(name, "session-1", "tool00001", HERE)


@pytest.fixture
def threads() -> Iterator[ToolThreads]:
    """The threads of a worker."""
    made = ToolThreads(SETTINGS)
    yield made
    made.close()


@pytest.fixture
async def stuck(threads: ToolThreads) -> AsyncIterator[asyncio.Task[Any]]:
    """A call of an async tool that blocks its event loop until the test ends."""
    gate, begun = threading.Event(), threading.Event()

    async def block() -> str:
        begun.set()
        gate.wait(30)
        return "at last"

    task = asyncio.create_task(threads.call(name_call("stuck"), block, is_async=True))
    assert await asyncio.to_thread(begun.wait, 10)
    yield task
    gate.set()
    with suppress(asyncio.CancelledError):
        assert await task == "at last"


async def wait_until_logged(caplog: pytest.LogCaptureFixture, text: str) -> str:
    """The first line of the log with this text, as soon as it is there."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            for record in caplog.records:
                if text in record.getMessage():
                    return record.getMessage()
            await asyncio.sleep(0.01)


async def test_async_tools_share_an_event_loop_that_is_not_the_workers(threads: ToolThreads) -> None:
    """What one call makes there (a client, a pool) the next one can use."""

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    first, second = [await threads.call(name_call(), where, is_async=True) for _ in range(2)]
    assert first is second
    assert first is not asyncio.get_running_loop()


async def test_a_tool_that_blocks_is_named_once_with_where_it_stands(
    threads: ToolThreads, stuck: asyncio.Task[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The tool, the session, the call, how long, and the line of the tool's own code; nothing of what it works on."""
    line = await wait_until_logged(caplog, "has blocked its event loop")
    assert line.startswith("tool 'stuck' (session 'session-1', call 'tool00001') has blocked its event loop for 1.")
    assert f"{HERE}:" in line
    assert "in block." in line
    await asyncio.sleep(3 * SETTINGS.pulse_seconds)
    assert len([record for record in caplog.records if record.name == "clew.tools"]) == 1


async def test_a_task_that_a_tool_has_started_is_named_by_its_call(
    threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is known to whatever comes of it."""
    gate = threading.Event()

    async def inner() -> None:
        gate.wait(30)

    async def outer() -> None:
        await asyncio.gather(inner())

    task = asyncio.create_task(threads.call(name_call("outer"), outer, is_async=True))
    assert "in inner." in await wait_until_logged(caplog, "tool 'outer'")
    gate.set()
    await task


async def test_other_tools_go_on_beside_one_that_blocks(
    threads: ToolThreads, stuck: asyncio.Task[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Sync ones at once; async ones on another event loop, as soon as the block has been noticed."""

    async def quick() -> str:
        return "quick"

    assert await threads.call(name_call(), lambda: "sync", is_async=False) == "sync"
    await wait_until_logged(caplog, "has blocked")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await threads.call(name_call(), quick, is_async=True) == "quick"
    assert not stuck.done()


async def test_the_first_loop_is_used_again_when_it_answers(
    threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """What was made on it is of use again."""

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def block() -> asyncio.AbstractEventLoop:
        gate.wait(30)
        return asyncio.get_running_loop()

    gate = threading.Event()
    blocked = asyncio.create_task(threads.call(name_call(), block, is_async=True))
    await wait_until_logged(caplog, "has blocked")
    spare = await threads.call(name_call(), where, is_async=True)
    gate.set()
    first = await blocked
    assert spare is not first
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await threads.call(name_call(), where, is_async=True) is not first:  # noqa: ASYNC110 - it is a look
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["blocks", "ignores", "sync"])
async def test_what_does_not_end_is_given_up_at_its_time_and_counted(
    kind: str, threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """With too many of a tool it is not called again until one of them ends; other tools are."""
    caplog.set_level(logging.WARNING)
    gate, begun = threading.Event(), threading.Semaphore(0)

    async def blocks() -> None:
        begun.release()
        gate.wait(30)

    async def ignores() -> None:
        begun.release()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    def sync() -> None:
        begun.release()
        gate.wait(30)

    function = {"blocks": blocks, "ignores": ignores, "sync": sync}[kind]

    async def end(limit: asyncio.Timeout) -> None:
        # A coroutine that is cancelled before it begins ends at once.
        if kind == "ignores":
            assert await asyncio.to_thread(begun.acquire, timeout=10)
        limit.reschedule(asyncio.get_running_loop().time() + 0.05)

    async def call() -> None:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
            group.create_task(end(limit))
            await threads.call(name_call("bad"), function, is_async=kind != "sync")

    for _ in range(2):
        clock = time.monotonic()
        with pytest.raises(TimeoutError):
            await call()
        assert time.monotonic() - clock < 30
    line = await wait_until_logged(caplog, "was abandoned and still runs")
    # A coroutine that waits stands nowhere in its thread.
    assert (f"{HERE}:" in line) == (kind != "ignores")
    with pytest.raises(TooManyAbandoned, match="2 calls of tool 'bad' were abandoned and still run"):
        await threads.call(name_call("bad"), function, is_async=kind != "sync")
    assert await threads.call(name_call("good"), lambda: 1, is_async=False) == 1
    assert kind == "ignores" or begun.acquire(blocking=False)
    gate.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await threads.call(name_call("bad"), lambda: None, is_async=False)
                break
            except TooManyAbandoned:
                await asyncio.sleep(0.01)


async def test_context_variables_are_the_callers(threads: ToolThreads) -> None:
    """In either kind of tool, and what the tool sets stays with it."""
    variable = ContextVar("variable", default="unset")
    variable.set("the caller's")

    def sync() -> str:
        seen = variable.get()
        variable.set("the tool's")
        return seen

    async def coroutine() -> str:
        return sync()

    assert await threads.call(name_call(), sync, is_async=False) == "the caller's"
    assert await threads.call(name_call(), coroutine, is_async=True) == "the caller's"
    assert variable.get() == "the caller's"


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_no_exception_of_a_tool_ends_the_loop_or_looks_like_a_cancellation(
    raised: type[BaseException], threads: ToolThreads
) -> None:
    """Raised in the tool itself, or in a task that it has started."""

    async def directly() -> None:
        raise raised

    async def in_a_task() -> str:
        task = asyncio.ensure_future(directly())
        await asyncio.wait({task})
        with suppress(BaseException):
            task.result()
        return "goes on"

    with pytest.raises(RuntimeError, match=raised.__name__):
        await threads.call(name_call(), directly, is_async=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await threads.call(name_call(), in_a_task, is_async=True) == "goes on"


async def test_threads_are_daemons(threads: ToolThreads) -> None:
    """None of them holds the end of the process."""

    async def on_loop() -> bool:
        return threading.current_thread().daemon

    assert await threads.call(name_call(), on_loop, is_async=True)
    assert await threads.call(name_call(), lambda: threading.current_thread().daemon, is_async=False)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("clew-tool"))
