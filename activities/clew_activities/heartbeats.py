"""Heartbeats in the background, for every activity.

If heartbeats stop, the server retries the activity on another worker. Their details show clients the activity's
progress, and their answers bring cancellations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity

INTERVAL_SECONDS = 0.2
"""Seconds between two heartbeats of one activity, and the worker's throttle. A cancellation arrives within it."""
MAX_INTERVAL_SECONDS = 2.0
"""Longest interval of a worker with many activities, in seconds. The session's heartbeat timeout is 5 s."""
BEATS_PER_SECOND = 100
"""Most heartbeats a second of all activities of a process. 500 take about a sixth of a CPU core of the worker, and
the server stores each of them."""

_beating: set[object] = set()


@asynccontextmanager
async def send_heartbeats(details: Callable[[], Sequence[Any]] = lambda: ()) -> AsyncIterator[None]:
    """Send heartbeats with `details()` while the body runs.

    The first one follows after an interval, so that the server has no work with an activity that ends at once. A
    repeated attempt sends one before the body starts: until then the server shows that of the attempt before.
    """
    if activity.info().attempt > 1:
        activity.heartbeat(*details())
    beat = _Beat(details)
    _beating.add(beat)
    beat.schedule()
    try:
        yield
    finally:
        _beating.discard(beat)
        beat.cancel()


def compute_interval(activities: int) -> float:
    """Compute the interval between two heartbeats of one activity, when `activities` of them run."""
    return min(max(INTERVAL_SECONDS, activities / BEATS_PER_SECOND), MAX_INTERVAL_SECONDS)


class _Beat:
    """The next heartbeat of an activity. A timer, as most activities end before it is due: a task would run twice."""

    def __init__(self, details: Callable[[], Sequence[Any]]) -> None:
        self._details = details
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Let the next heartbeat follow after the interval, in the context of the activity."""
        interval = compute_interval(len(_beating))
        self._timer = asyncio.get_running_loop().call_later(interval, self._send)

    def cancel(self) -> None:
        """Send no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        activity.heartbeat(*self._details())
        self.schedule()
