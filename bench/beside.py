"""Clew and the floor side by side, in turn on one server: how much is measured, and with what."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bench.floor import CACHED
from bench.load_results import Results, Row
from bench.systems import Process, Servers, System, Turn, run_clew, run_floor

QUESTION = "A question that a user might ask, in so many words. " * 17
WARM_TURNS = 12
"""Turns after which the context of a session no longer grows."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: The rounds of each system.
        seconds: The length of a round under load.
        latency_turns: The turns of one session that are timed.
        busy: The numbers of busy sessions.
        cached: The sessions whose memory is measured.
        lengths: The turns of the sessions that are resumed.
        returned: The number of sessions that are resumed at once, and their turns.
        idle: The number of idle sessions.
        growth: The turns after which a session is measured again.
        copied: The turns of its copies, whose last turn is repeated, that are measured then.
    """

    rounds: int = 3
    seconds: float = 5.0
    latency_turns: int = 300
    busy: tuple[int, ...] = (1, 10, 50, 200, 1000)
    cached: int = 300
    lengths: tuple[int, ...] = (10, 110, 360)
    returned: tuple[int, int] = (150, 60)
    idle: int = 10_000
    growth: tuple[int, ...] = (10, 1_000)
    copied: tuple[int, ...] = (10_000, 100_000)


QUICK = Sizes(2, 3.0, 100, (1, 10, 50), 150, (10, 110), (50, 60), 300, (10, 300), (10_000,))


@dataclass(frozen=True)
class Bench:
    """One server, one scripted model, and how workers are started on them.

    The model and the callers run in the bench's own process.

    Attributes:
        address: The address of Temporal's server.
        servers: The processes of the server, with its database and its store if they are others.
        model_url: The base URL of the model.
        store: The URL of the archive's store.
        sizes: How much is measured.
        results: What has been measured.
    """

    address: str
    servers: Servers
    model_url: str
    store: str
    sizes: Sizes
    results: Results

    def measure_cpu(self, worker: Process) -> tuple[float, float]:
        """Measure the seconds of CPU time so far: of a worker, and of the server, the model and the callers."""
        return worker.measure_cpu(), self.servers.measure_cpu() + time.process_time()

    async def start(self, stack: AsyncExitStack, *, floor_cache: int = CACHED) -> tuple[System, ...]:
        """Start both workers: Clew's, and that of the floor, the least agent and two variants of the floor."""
        clew = await stack.enter_async_context(run_clew(self.address, self.model_url, self.store))
        floor = run_floor(self.address, self.model_url, floor_cache)
        return (clew, *await stack.enter_async_context(floor))

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a row, and report it to stderr at once."""
        row = Row(*args, **kwargs)
        self.results.rows.append(row)
        other = "" if row.floor is None else f", the floor {row.floor:,.4g}"
        other += "" if row.ratio is None else f", ratio {row.ratio:.3g}"
        other += "" if row.reach is None else f", possible {row.reach:,.4g}"
        print(f"{row.name}: {row.clew:,.4g} {row.unit}{other}", file=sys.stderr, flush=True)


def rotate(order: range, number: int) -> list[int]:
    """Let another system be first in each round."""
    first = number % len(order)
    return [*order[first:], *order[:first]]


async def take_time(work: Awaitable[object]) -> float:
    """Measure the seconds of some work."""
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def keep_busy(turns: Sequence[Turn], seconds: float) -> tuple[int, float]:
    """Keep all sessions busy; return the turns that ended, and the seconds until the last one did."""
    begun, done = time.perf_counter(), 0

    async def ask(turn: Turn) -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await turn(QUESTION)
            done += 1

    await asyncio.gather(*map(ask, turns))
    return done, time.perf_counter() - begun
