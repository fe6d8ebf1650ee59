"""Wait for what no event announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import httpx

PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 0.02
"""The first pause of `wait_until`; each one after it is a quarter longer, up to `_MAX_PAUSE_SECONDS`."""
_MAX_PAUSE_SECONDS = 0.1


async def wait_until(holds: Callable[[], Awaitable[object] | object]) -> None:
    """Poll until a condition holds.

    Raises:
        TimeoutError: It does not hold after `PATIENCE_SECONDS`.
    """
    pause = _PAUSE_SECONDS
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            value = holds()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.25, _MAX_PAUSE_SECONDS)


async def wait_until_listening(http: httpx.AsyncClient) -> None:
    """Wait until a server answers at the client's address, whatever it answers.

    Raises:
        TimeoutError: It does not after `PATIENCE_SECONDS`.
    """

    async def listens() -> bool:
        try:
            await http.get("/")
        except httpx.ConnectError:
            return False
        return True

    await wait_until(listens)
