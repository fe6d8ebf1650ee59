"""Heartbeats in the background: the sign of life of every activity, and the window through which it is watched.

Every activity beats: the work of a worker that has died is taken over as soon as its beats fail to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity

INTERVAL_SECONDS = 0.2
"""Also the worker's throttle. With it a cancellation arrives in about 0.2 s, and a reply is seen to grow."""


@asynccontextmanager
async def beating(details: Callable[[], Any] = lambda: None) -> AsyncIterator[None]:
    """Beat while the body runs, each beat with what `details` gives; the first one comes before the body."""
    activity.heartbeat(details())
    task = asyncio.create_task(_beat(details))
    try:
        yield
    finally:
        task.cancel()


async def _beat(details: Callable[[], Any]) -> None:
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        activity.heartbeat(details())
