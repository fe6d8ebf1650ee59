"""Rate limits of providers, on a real server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from clew.local import Reply
from clew_workflows.contract.names import name_provider_queue
from tests.support.processes import run_worker_process
from tests.support.rolling import OFTEN, list_model_queues, make_id, run_rolling_worker
from tests.support.stack import Stack

LIMIT = 5
PARTITIONS = 4
"""Partitions of a task queue. Each has its share of the limit, and lets two calls begin at once under this one."""


@pytest.mark.slow
async def test_calls_of_a_limited_provider_begin_at_its_rate(stack: Stack) -> None:
    """However many workers there are: here two. The session's history says which queue a call was on."""
    begun: list[float] = []

    def script(_body: dict[str, Any]) -> Reply:
        begun.append(time.monotonic())
        return Reply("fine")

    calls, at_once = 20, 2 * PARTITIONS
    async with run_rolling_worker(stack, rate_limits={"scripted": LIMIT}) as clew:
        limits = {"CLEW_RATE_LIMITS": f"scripted={LIMIT}"}
        async with run_worker_process(stack, clew.task_queue, CLEW_STORE=stack.server.store, **limits):
            model = stack.add_model(script)
            sessions = await asyncio.gather(*(clew.open(make_id(), model=model) for _ in range(calls)))
            assert await asyncio.gather(*(session.ask("hello") for session in sessions)) == ["fine"] * calls
    assert max(begun) - min(begun) >= (calls - at_once) / LIMIT * 0.9
    assert await list_model_queues(stack.clew, sessions[0]) == [name_provider_queue(clew.task_queue, "scripted")]


async def test_open_sessions_follow_when_limits_are_set_and_removed(stack: Stack) -> None:
    """A call on a queue that is no longer the right one leads to a new preparation, before any model is called."""
    model = stack.add_model("fine")
    async with run_rolling_worker(stack, OFTEN) as clew:
        session = await clew.open(make_id(), model=model)
        assert await session.ask("1") == "fine"
    async with run_rolling_worker(stack, OFTEN, task_queue=clew.task_queue, rate_limits={"scripted": 1000}):
        assert await session.ask("2") == "fine"
        assert await session.ask("3") == "fine"
    async with run_rolling_worker(stack, OFTEN, task_queue=clew.task_queue):
        assert await session.ask("4") == "fine"
    shared, own = clew.task_queue, name_provider_queue(clew.task_queue, "scripted")
    assert await list_model_queues(stack.clew, session) == [shared, shared, own, own, own, shared]
    assert len(stack.list_requests(model)) == 4
