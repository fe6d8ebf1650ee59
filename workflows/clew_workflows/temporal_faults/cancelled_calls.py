"""The SDK turns the cancellation of a call into an error of its own: turn it back.

A cancelled `start_update` raises `WorkflowUpdateRPCTimeoutOrCancelledError` in place of `CancelledError`. A caller's
Ctrl-C, or the end of its `asyncio.timeout`, would look like a server that does not answer.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/cancelled_calls.md.
Can go: when a cancelled `start_update` raises `CancelledError`; `asyncio.wait_for` does then what `wait_at_most`
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

T = TypeVar("T")


@contextmanager
def keep_cancellations() -> Iterator[None]:
    """Turn the SDK's error back into the cancellation that it has caught."""
    try:
        yield
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise error.__cause__ from None
        raise


async def wait_at_most(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Wait for a result, whatever the SDK makes of a cancellation.

    Raises:
        TimeoutError: The result did not come in time.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
