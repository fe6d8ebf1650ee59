"""An event loop in a thread of its own, with a Temporal server that all stacks of the process share.

The stacks live on this loop, so that they run whatever the loop of a test does, and outlive it.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from clew.local import TemporalServer, temporal_server

T = TypeVar("T")

START_SECONDS = 60.0
STOP_SECONDS = 10.0
CANCEL_SECONDS = 1.0
DYNAMIC_CONFIG = {"frontend.WorkflowTimeSkippingEnabled": True, "history.timerProcessorMaxTimeShift": "10ms"}
"""The settings of the server: it can skip time, and its timers fire 10 ms late at most, not a second."""


class Background:
    """The loop, its thread and the server. Other threads call its methods."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clew-testing", daemon=True)
        self._thread.start()
        self._open = AsyncExitStack()
        self._server: TemporalServer | None = None
        self._starting = asyncio.Lock()
        atexit.register(self._stop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, for a caller on another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def run_blocking(self, work: Coroutine[Any, Any, T], timeout_seconds: float = START_SECONDS) -> T:
        """Run a coroutine on the loop, and block this thread until it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_seconds)

    async def start_server(self) -> TemporalServer:
        """Start the server, once. To be awaited on this loop."""
        async with self._starting:
            if self._server is None:
                self._server = await self._open.enter_async_context(
                    temporal_server(ui=False, dynamic_config=DYNAMIC_CONFIG)
                )
        return self._server

    async def _end(self) -> None:
        """Cancel what still runs, such as workers that wait for polls, and stop the server."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        await self._open.aclose()

    def _stop(self) -> None:
        self.run_blocking(self._end(), STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()


_lock = threading.Lock()
_backgrounds: list[Background] = []


def get_background() -> Background:
    """Get the background of this process; the first call starts it."""
    with _lock:
        if not _backgrounds:
            _backgrounds.append(Background())
        return _backgrounds[0]
