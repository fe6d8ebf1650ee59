"""Between the client and the wire."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from clew.errors import WorkerUnavailable
from clew.session.transport import translate_errors


async def asking(started: asyncio.Event) -> None:
    """What the SDK does: it makes an error of its own of a cancellation."""
    try:
        started.set()
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise WorkflowUpdateRPCTimeoutOrCancelledError from None


async def test_a_cancellation_stays_the_callers() -> None:
    """Whatever the SDK makes of it: a Ctrl-C must not read as a worker that does not answer."""
    started = asyncio.Event()

    async def caller() -> None:
        async with translate_errors("s"):
            await asking(started)

    task = asyncio.create_task(caller())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_what_takes_too_long_is_a_worker_that_does_not_answer() -> None:
    """The time that a question has is not a cancellation of who asks."""
    with pytest.raises(WorkerUnavailable):
        async with translate_errors("s", 0.01):
            await asking(asyncio.Event())
