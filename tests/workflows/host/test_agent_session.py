"""The session's workflow, where its worker has no room for it any longer."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from temporalio.worker import Worker

from clew.local import Reply
from clew_activities.worker import assembly
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack

SESSIONS = 12
"""The SDK cancels the tasks of a workflow in any order: some of the sessions have each."""


async def test_an_evicted_session_goes_on_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workflow ends in the worker's memory while a model is called: the SDK logs one that does not."""
    called, free = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_body: object) -> Reply:
        called.release()
        await free.wait()
        return Reply("fine")

    monkeypatch.setattr(assembly, "Worker", partial(Worker, max_cached_workflows=2))
    model = stack.add_model(wait)
    async with run_rolling_worker(stack) as clew:
        requests = [await (await clew.open(make_id(), model=model)).message("hello") for _ in range(SESSIONS)]
        for _ in requests:
            await called.acquire()
        free.set()
        assert [await request.answer() for request in requests] == ["fine"] * SESSIONS
    assert "eviction" not in caplog.text
