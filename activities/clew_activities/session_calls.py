"""What the activities share through which other workflows reach sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import activity

from clew.contract import SessionConfig
from clew.contract.calls import SessionCall
from clew.errors import InvalidInput
from clew.session.connection import Clew
from clew.session.session import Session

T = TypeVar("T")

BEAT_SECONDS = 2.0
"""Seconds between two heartbeats. A cancellation arrives within them."""


def connect(call: SessionCall) -> Clew:
    """Make a connection for a call, with the worker's client."""
    return Clew(activity.client(), call.task_queue)


async def open_session(call: SessionCall, config: dict[str, Any]) -> Session:
    """Open the session of a call.

    Raises:
        Refusal: The configuration is not valid, or the session cannot be opened.
    """
    if unknown := sorted(config.keys() - SessionConfig.model_fields.keys()):
        raise InvalidInput(f"config: there is no field {unknown[0]!r}")
    return await connect(call).open(call.session_id, **config)


async def wait_with_heartbeats(work: Coroutine[Any, Any, T], seconds: float) -> T | None:
    """Wait for a result and send heartbeats meanwhile. None: it did not come in time."""
    task = asyncio.ensure_future(work)
    give_up_at = asyncio.get_running_loop().time() + seconds
    try:
        while not task.done():
            activity.heartbeat()
            left = give_up_at - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            await asyncio.wait([task], timeout=min(left, BEAT_SECONDS))
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
