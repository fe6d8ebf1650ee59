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
MAX_INTERVAL_SECONDS = 2.0
"""Between two beats of a worker with many activities. The session takes one for lost after 5 s without a beat."""
BEATS_PER_SECOND = 100
"""Of all activities of a process together: beyond 100 of them each beats less often. 500 take about a sixth of a
core of the worker, and the server has to store each of them."""

_beating: set[object] = set()


@asynccontextmanager
async def send_heartbeats(details: Callable[[], Any] = lambda: None) -> AsyncIterator[None]:
    """Beat while the body runs, each beat with what `details` gives; the first one comes before the body."""
    activity.heartbeat(details())
    task = asyncio.create_task(_beat(details))
    _beating.add(task)
    try:
        yield
    finally:
        _beating.discard(task)
        task.cancel()


def compute_interval(activities: int) -> float:
    """The time between two beats of one of so many activities."""
    return min(max(INTERVAL_SECONDS, activities / BEATS_PER_SECOND), MAX_INTERVAL_SECONDS)


async def _beat(details: Callable[[], Any]) -> None:
    while True:
        await asyncio.sleep(compute_interval(len(_beating)))
        activity.heartbeat(details())
