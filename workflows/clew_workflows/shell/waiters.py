"""Callers who wait for the outcome of a request, and for how long they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow

from clew.contract import MAX_WAITERS


@dataclass(eq=False, slots=True)
class Waiter:
    """A caller who waits since a time of the workflow's clock, unless there were too many."""

    since: float
    expired: bool


class Waiters:
    """All callers of one run of the workflow. One timer serves them all, so that a turn costs none."""

    def __init__(self, longest: timedelta) -> None:
        self._longest_seconds = longest.total_seconds()
        self._waiting: set[Waiter] = set()
        self._sweeping = False
        self._dismissed = False

    @property
    def any(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    def enter(self) -> Waiter:
        """A caller comes."""
        waiter = Waiter(since=workflow.time(), expired=self._dismissed or len(self._waiting) >= MAX_WAITERS)
        if not waiter.expired:
            self._waiting.add(waiter)
            if not self._sweeping:
                self._sweeping = True
                asyncio.create_task(self._sweep())  # noqa: RUF006 - the workflow's loop holds its tasks
        return waiter

    async def wait(self, waiter: Waiter | None, done: Callable[[], bool]) -> None:
        """Back when there is an answer, or when the caller has waited long enough."""
        await workflow.wait_condition(lambda: waiter is None or waiter.expired or done())
        self.leave(waiter)

    def leave(self, waiter: Waiter | None) -> None:
        """A caller waits no longer."""
        if waiter:
            self._waiting.discard(waiter)

    def dismiss(self) -> None:
        """Everybody has waited long enough, and who is still to come, for this run of the workflow ends."""
        self._dismissed = True
        for waiter in self._waiting:
            waiter.expired = True

    async def _sweep(self) -> None:
        while waiting := [waiter for waiter in self._waiting if not waiter.expired]:
            oldest = min(waiter.since for waiter in waiting)
            await workflow.sleep(max(oldest + self._longest_seconds - workflow.time(), 1), summary="long waits end")
            for waiter in self._waiting:
                waiter.expired |= workflow.time() - waiter.since >= self._longest_seconds
        self._sweeping = False
