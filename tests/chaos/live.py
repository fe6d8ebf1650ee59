"""The live channel's Redis server, which fails and is cut off: viewers still see each reply, once."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from typing import Self

from clew.local.child import LOOPBACK
from clew.session.live.channel import VARIABLE
from tests.support.proxy import Proxy, run_proxy
from tests.support.redis_server import PROGRAM, RedisServer, run_redis


class LiveServer:
    """The server (Debian: redis-server), behind a proxy. Where it is not installed, a round has no live channel.

    Attributes:
        env: The variable of all processes that have the channel.
        faults: Faults so far.
    """

    def __init__(self) -> None:
        self.faults = 0
        self.env: dict[str, str] = {}
        self._stack = AsyncExitStack()
        self._failing = asyncio.Lock()
        self._redis: RedisServer | None = None
        self._proxy: Proxy

    async def __aenter__(self) -> Self:
        if shutil.which(PROGRAM):
            self._redis = await self._stack.enter_async_context(run_redis())
            self._proxy = await self._stack.enter_async_context(run_proxy(f"{LOOPBACK}:{self._redis.port}"))
            self.env = {VARIABLE: f"redis://{self._proxy.address}"}
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def fail(self, how: str, seconds: float) -> None:
        """Have the server fail, or cut it off, for some seconds, in one of the ways of `LIVE_FAULTS`."""
        redis = self._redis
        if redis is None or self._failing.locked():
            return
        async with self._failing:
            self.faults += 1
            match how:
                case "kill":
                    await redis.kill()
                    await asyncio.sleep(seconds)
                    await redis.start()
                case "pause":
                    redis.pause()
                    try:
                        await asyncio.sleep(seconds)
                    finally:
                        redis.resume()
                case "empty":
                    await redis.call("FLUSHALL")
                case _:
                    self._proxy.split(how)
                    try:
                        await asyncio.sleep(seconds)
                    finally:
                        await self._proxy.restore()
