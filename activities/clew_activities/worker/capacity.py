"""How many activities a worker runs at once, and the room that the process makes for them."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields

OPEN_FILES = 65_536
"""Files that the process may have open, where the system lets it: each model call has a connection."""
MAX_CALLS = 100_000
"""The most that `CLEW_MODEL_CALLS` and its like may be."""


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


def read_capacity(environ: Mapping[str, str]) -> Capacity:
    """How much a worker does at once: `CLEW_MODEL_CALLS`, `CLEW_TOOL_CALLS`, `CLEW_STORE_CALLS`.

    Raises:
        ValueError: one of them is no number from 1 to `MAX_CALLS`.
    """
    numbers: dict[str, int] = {}
    for field in fields(Capacity):
        variable = f"CLEW_{field.name.upper()}"
        if text := environ.get(variable):
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
