"""Repeat reads that fail for now: a server that restarts, or a session without a worker, comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.service import RPCError, RPCStatusCode

from clew.errors import ArchiveUnavailable, ClewError, ServerUnreachable, Starting, WorkerUnavailable

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
"""Seconds until a read is repeated, the first time; each pause is twice as long as the one before."""
LONGEST_PAUSE_SECONDS = 5.0
"""Longest of these pauses, in seconds."""

_PASSING = (ServerUnreachable, WorkerUnavailable, Starting, ArchiveUnavailable, TimeoutError, ConnectionError)
_FINAL_STATUSES = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)


class Pauses:
    """Pauses between attempts, each twice as long as the one before."""

    def __init__(self, longest: float = LONGEST_PAUSE_SECONDS) -> None:
        self._longest = longest
        self._next = FIRST_PAUSE_SECONDS

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._next = FIRST_PAUSE_SECONDS

    async def sleep(self) -> None:
        """Wait."""
        await asyncio.sleep(self._next)
        self._next = min(2 * self._next, self._longest)


def is_passing(error: Exception) -> bool:
    """Whether the same read may succeed later."""
    if isinstance(error, RPCError):
        return error.status not in _FINAL_STATUSES
    if type(error) is ClewError and isinstance(error.__cause__, RPCError):
        return is_passing(error.__cause__)
    return isinstance(error, _PASSING)


async def persist(read: Callable[[], Awaitable[T]]) -> T:
    """Read something, again and again while it fails for reasons that pass."""
    pauses = Pauses()
    while True:
        try:
            return await read()
        except Exception as error:
            if not is_passing(error):
                raise
        await pauses.sleep()
