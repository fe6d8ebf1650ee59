"""How many activities a worker runs at the same time, and the process limits that this needs."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields

# Rate limits: how many calls all workers of a task queue together begin in a second. The server enforces them.


RATE_LIMITS = "CLEW_RATE_LIMITS"
MIN_RATE = 0.001
MAX_RATE = 100_000.0
"""Least and largest rate, in calls a second."""
_FORM = f"PROVIDER=NUMBER, as in openai=50,anthropic=20, with numbers from {MIN_RATE} to {MAX_RATE:.0f}"


def read_rate_limits(environ: Mapping[str, str]) -> Mapping[str, float]:
    """Read `CLEW_RATE_LIMITS`: the most model calls in a second, by provider.

    Raises:
        ValueError: The value is not a list of providers with their rates, or names a provider twice.
    """
    limits: dict[str, float] = {}
    for part in filter(None, map(str.strip, environ.get(RATE_LIMITS, "").split(","))):
        provider, _, number = map(str.strip, part.partition("="))
        rate = parse_rate(number)
        if not provider or rate is None:
            raise ValueError(f"{RATE_LIMITS} must be a list of {_FORM}, not {part[:50]!r}")
        if provider in limits:
            raise ValueError(f"{RATE_LIMITS} names {provider[:50]!r} twice")
        limits[provider] = rate
    return limits


def parse_rate(text: str) -> float | None:
    """Parse a rate; None: it is not a number from `MIN_RATE` to `MAX_RATE`."""
    try:
        rate = float(text)
    except ValueError:
        return None
    # Temporal takes 0 for no limit.
    return rate if MIN_RATE <= rate <= MAX_RATE else None


OPEN_FILES = 65_536
"""Limit of open files that the process requests from the system: each model call has a connection."""
MAX_CALLS = 100_000
"""Largest value of these variables."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many activities of each kind a worker runs at the same time. Further ones wait on the server.

    Attributes:
        model_calls: Model calls. Each takes a connection and the memory of its context.
        tool_calls: Tool calls. Each call of a sync tool takes a thread.
        store_calls: Activities that prepare, archive and read sessions. Each takes a few megabytes at most.
        caller_calls: Calls of other workflows (`clew.workflow`). Each waits for a request most of the time.
    """

    model_calls: int = 1000
    tool_calls: int = 500
    store_calls: int = 100
    caller_calls: int = 1000

    @property
    def direct_calls(self) -> int:
        """The most model calls of the sessions' own task queue."""
        return self.model_calls // 2


def read_capacity(environ: Mapping[str, str]) -> Capacity:
    """Read `CLEW_MODEL_CALLS`, `CLEW_TOOL_CALLS`, `CLEW_STORE_CALLS` and `CLEW_CALLER_CALLS`.

    Raises:
        ValueError: A value is not a number from 1 to `MAX_CALLS`.
    """
    numbers: dict[str, int] = {}
    for field in fields(Capacity):
        variable = f"CLEW_{field.name.upper()}"
        if text := environ.get(variable):
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_CALLS):
                raise ValueError(f"{variable} must be a number from 1 to {MAX_CALLS}, not {text[:50]!r}")
            numbers[field.name] = int(text[:9])
    return Capacity(**numbers)


def make_room(loop: asyncio.AbstractEventLoop, capacity: Capacity) -> None:
    """Raise the process limits for so many calls: threads for host name lookups, and open files.

    asyncio looks host names up in a few threads: a few lookups that hang would block those of all other calls.
    """
    loop.set_default_executor(ThreadPoolExecutor(capacity.model_calls, thread_name_prefix="clew-lookup"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
