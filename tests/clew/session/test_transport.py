"""The translation of Temporal's errors."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from clew.errors import WorkerUnavailable
from clew.session.transport import translate_errors


async def wait_like_the_sdk(started: asyncio.Event) -> None:
    """Wait, and turn a cancellation into an error, as the SDK does."""
    try:
        started.set()
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise WorkflowUpdateRPCTimeoutOrCancelledError from error


async def test_a_cancellation_stays_the_callers() -> None:
    """A caller's cancellation stays a `CancelledError`, although the SDK raises another error."""
    started = asyncio.Event()

    async def caller() -> None:
        async with translate_errors("s"):
            await wait_like_the_sdk(started)

    task = asyncio.create_task(caller())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_what_takes_too_long_is_a_worker_that_does_not_answer() -> None:
    """A timeout is a `WorkerUnavailable`, not a cancellation."""
    with pytest.raises(WorkerUnavailable):
        async with translate_errors("s", 0.01):
            await wait_like_the_sdk(asyncio.Event())
