"""What a turn costs on Temporal Cloud, as the server counts it, and what the few heartbeats must still bring."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bench.actions import read_actions
from clew import Clew, Session
from clew.local import Reply, ToolCall, temporal_server
from clew.session.events import TextAdded
from clew_activities.heartbeats import REST_SECONDS
from tests.support import toolbox
from tests.support.action_counts import SESSION, TURN
from tests.support.processes import open_session_on, run_worker_process
from tests.support.stack import Stack, get_last_message, serve
from tests.support.viewers import collect, select
from tests.support.waiting import wait_until

MARK = "workflow started"
PROMPT_SECONDS = 2.0
"""Less than half the time between two heartbeats that nobody waits for."""
ENDLESS = Reply("word " * 1000, tokens_per_second=5)


@pytest.fixture(scope="module")
async def counted(stack: Stack) -> AsyncIterator[Stack]:
    """A worker in this process on a server of its own, whose counts no other session changes."""
    async with temporal_server(ui=False) as server:
        own = replace(stack, clew=await Clew.connect(server.address), server=server)
        async with serve(own.clew, own.environ, store=own.store):
            yield own


class Counting:
    """Counts the actions of a server.

    Attributes:
        actions: Those while the body of `count_actions` ran, once it has ended.
    """

    def __init__(self) -> None:
        self.actions: Counter[str] = Counter()


@asynccontextmanager
async def count_actions(counted: Stack) -> AsyncIterator[Counting]:
    counting, before = Counting(), await read_all(counted)
    yield counting
    counting.actions = await read_all(counted) - before
    del counting.actions[MARK]


async def read_all(counted: Stack) -> Counter[str]:
    """Read the server's counts once they have all that it has counted: they follow about a second later."""
    begun = (await read_actions(counted.server))[MARK]
    # No worker serves it. What the server has counted before is in its metrics with this one.
    await counted.clew.temporal.start_workflow("Mark", id=uuid.uuid4().hex, task_queue="nobody")
    counts: Counter[str] = Counter()

    async def has_mark() -> bool:
        counts.clear()
        counts.update(await read_actions(counted.server))
        return counts[MARK] > begun

    await wait_until(has_mark)
    return counts


def speak(body: dict[str, Any]) -> Reply:
    """Reply at once, for some seconds, or with a call of a tool."""
    message = get_last_message(body)
    if message["content"] == "add":
        return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    if message["content"] == "speak" or message["role"] == "tool":
        return Reply("word " * 12, tokens_per_second=5)
    return Reply("fine")


async def open_counted(counted: Stack) -> Session:
    """Open a session that has taken its first turn, which costs more."""
    session = await counted.open(speak, tools=["add"])
    await session.ask("hello")
    return session


async def test_a_turn_is_three_actions(counted: Stack) -> None:
    """An update, a model call of some seconds without a heartbeat, and what lists show afterwards."""
    session = await open_counted(counted)
    async with count_actions(counted) as counting:
        await session.ask("speak")
    assert counting.actions == TURN


@pytest.mark.slow
async def test_a_session_is_eight_actions_more_than_its_turns(counted: Stack) -> None:
    """Its start, its preparation, what lists show of it, and its archiving, which queries it twice."""
    async with count_actions(counted) as counting:
        session = await counted.open(speak)
        await session.ask("speak")
        await session.hibernate()
    assert {**counting.actions, MARK: 1} == SESSION


@pytest.mark.slow
async def test_a_tool_call_is_two_actions_more(counted: Stack) -> None:
    """The tool, and the model call that reads its result."""
    session = await open_counted(counted)
    async with count_actions(counted) as counting:
        await session.ask("add")
    assert counting.actions == {**TURN, "activity": 3}


@pytest.mark.slow
async def test_a_viewer_costs_heartbeats_only_where_there_is_something_new(counted: Stack) -> None:
    """Quickly at first, and then twice a second."""
    session = await open_counted(counted)
    async with count_actions(counted) as counting:
        events = await collect(await session.message("speak"))
    assert 3 < len(select(events, TextAdded)) <= counting.actions["heartbeat"] + 1
    assert counting.actions["heartbeat"] <= 10
    async with count_actions(counted) as counting:
        await session.ask("speak")
    assert "heartbeat" not in counting.actions, "the viewer has left"


@pytest.mark.slow
async def test_a_long_call_has_a_heartbeat_every_four_seconds(counted: Stack) -> None:
    """However much it writes. It takes ten seconds, and a little more on a slow machine."""
    session = await counted.open(lambda _body: Reply("word " * 50, tokens_per_second=5))
    async with count_actions(counted) as counting:
        await session.ask("go")
    assert counting.actions["heartbeat"] in (2, 3)


async def test_a_cancelled_reply_waits_for_no_heartbeat(stack: Stack) -> None:
    """The session tells the call in its process that it is to ask for the cancellation."""
    begun = asyncio.Event()

    def script(_body: dict[str, Any]) -> Reply:
        begun.set()
        return ENDLESS

    session = await stack.open(script)
    request = await session.message("go")
    await begun.wait()
    async with asyncio.timeout(PROMPT_SECONDS):
        await session.cancel()
        assert (await request.result()).status == "cancelled"


async def test_a_cancelled_tool_waits_for_no_heartbeat(stack: Stack) -> None:
    """The session goes on without it, and the tool of its process hears of it."""
    gate = uuid.uuid4().hex
    session = await stack.open(
        lambda _body: Reply(tool_calls=(ToolCall("note_cancel", {"gate": gate}),)), tools=["note_cancel"]
    )
    await session.message("go")
    await toolbox.get_gate(f"{gate}-started").wait()
    async with asyncio.timeout(PROMPT_SECONDS):
        await session.cancel()
        await toolbox.get_gate(f"{gate}-cancelled").wait()


@pytest.mark.slow
async def test_a_worker_apart_hears_of_viewers_and_of_cancellations(stack: Stack) -> None:
    """Before its next heartbeat, although another process serves the session."""
    queue = f"queue-{uuid.uuid4().hex}"
    begun = asyncio.Event()

    def script(_body: dict[str, Any]) -> Reply:
        begun.set()
        return replace(ENDLESS, delay_seconds=1.0)

    async with (
        run_worker_process(stack, queue, CLEW_SERVE="sessions"),
        run_worker_process(stack, queue, CLEW_SERVE="models"),
    ):
        session = await open_session_on(stack, queue, script)
        request = await session.message("go")
        await begun.wait()
        async with asyncio.timeout(1.0 + PROMPT_SECONDS):
            async for event in request.events():
                if isinstance(event, TextAdded):
                    break
        await session.cancel()
        assert (await request.result()).status == "cancelled"
        begun.clear()
        unwatched = await session.message("go")
        await begun.wait()
        async with asyncio.timeout(REST_SECONDS - 1):
            await session.cancel()
            assert (await unwatched.result()).status == "cancelled"


@pytest.mark.slow
async def test_a_dead_workers_call_is_taken_over_within_ten_seconds(stack: Stack) -> None:
    """Another worker that is there begins it, although heartbeats are rare."""
    queue, begun, again = f"queue-{uuid.uuid4().hex}", asyncio.Event(), asyncio.Event()

    def script(_body: dict[str, Any]) -> Reply:
        if begun.is_set():
            again.set()
            return Reply("at last")
        begun.set()
        return ENDLESS

    async with run_worker_process(stack, queue) as first:
        session = await open_session_on(stack, queue, script)
        request = await session.message("go")
        await begun.wait()
        async with run_worker_process(stack, queue):
            await first.kill()
            async with asyncio.timeout(10):
                await again.wait()
            assert await request.answer() == "at last"
