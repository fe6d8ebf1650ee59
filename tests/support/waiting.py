"""Wait for what no event announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


async def wait_until(holds: Callable[[], Awaitable[object] | object]) -> None:
    """Poll until a condition holds.

    Raises:
        TimeoutError: It does not hold after `PATIENCE_SECONDS`.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            value = holds()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(_PAUSE_SECONDS)
