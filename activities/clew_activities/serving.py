"""A worker's process: how much it does at once, its Temporal workers together, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Self

from temporalio.worker import Worker

from clew_activities.run_tool import ToolActivities

OPEN_FILES = 65_536
"""Files that the process may have open, where the system lets it: each model call has a connection."""
LEAVE_SECONDS = 3.0
"""How long threads that still run may hold the end of the process."""

log = logging.getLogger("clew.worker")


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many activities of a kind a worker runs at once. More wait on the server, for any worker.

    Attributes:
        model_calls: They wait on the network: each takes a connection and its context's memory.
        tool_calls: Each sync tool takes a thread.
        store_calls: Preparing, archiving and reading of sessions. Each holds a few megabytes at most.
    """

    model_calls: int = 1000
    tool_calls: int = 500
    store_calls: int = 100


MAX_CALLS = 100_000
"""The most that `CLEW_MODEL_CALLS` and its like may be."""


class SessionWorker:
    """Temporal workers that start and stop together, one for each task queue: `async with` runs them."""

    def __init__(self, workers: Sequence[Worker], tools: ToolActivities) -> None:
        self._workers = workers
        self._tools = tools

    async def __aenter__(self) -> Self:
        """Start all of them. If one of them fails for good, the body is cancelled, and its error is raised."""
        for worker in self._workers:
            await worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all of them at once, so that they share one grace period."""
        stopped = await asyncio.gather(
            *(worker.__aexit__(kind, error, traceback) for worker in self._workers), return_exceptions=True
        )
        self._tools.close()
        for failure in stopped:
            if failure is not None:
                raise failure


def capacity_from_env(env: Mapping[str, str]) -> Capacity:
    """How much a worker does at once: `CLEW_MODEL_CALLS`, `CLEW_TOOL_CALLS`, `CLEW_STORE_CALLS`.

    Raises:
        ValueError: one of them is no number from 1 to `MAX_CALLS`.
    """
    numbers: dict[str, int] = {}
    for field in fields(Capacity):
        variable = f"CLEW_{field.name.upper()}"
        if text := env.get(variable):
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_CALLS):
                raise ValueError(f"{variable} is a number from 1 to {MAX_CALLS}, not {text[:50]!r}")
            numbers[field.name] = int(text[:9])
    return Capacity(**numbers)


def make_room(loop: asyncio.AbstractEventLoop, capacity: Capacity) -> None:
    """Prepare the process for so many calls at once.

    Names of hosts are looked up in threads, of which asyncio has a handful: a few lookups that hang would hold every
    other provider's.
    """
    loop.set_default_executor(ThreadPoolExecutor(capacity.model_calls, thread_name_prefix="clew-lookup"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def leave_soon() -> None:
    """End the process within `LEAVE_SECONDS`, whatever threads of tools and lookups still run.

    Python waits for every thread that is not a daemon, and for every thread of an executor.
    """
    threading.Thread(target=_leave, name="clew-leave", daemon=True).start()


def _leave() -> None:
    time.sleep(LEAVE_SECONDS)
    held = sorted({thread.name for thread in threading.enumerate() if not thread.daemon})
    log.warning("the process ends although threads still run: %s", ", ".join(held))
    logging.shutdown()
    os._exit(0)
