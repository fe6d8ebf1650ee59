"""Waiters: callers that wait for the outcome of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow

from clew_workflows.contract import MAX_WAITERS


@dataclass(eq=False, slots=True)
class Waiter:
    """A waiting caller.

    Attributes:
        since: When it arrived, in seconds of the workflow's clock.
        expired: It is to be answered `running`: it has given way to another one, or too many callers wait.
    """

    since: float
    expired: bool


class Waiters:
    """The waiters of one workflow run. Waiting adds nothing to the history: no timer ends a wait.

    A caller may have died while it waits. So when all places are taken, the oldest wait gives way once it has lasted
    for `patience`.
    """

    def __init__(self, patience: timedelta) -> None:
        self._patience_seconds = patience.total_seconds()
        # In the order of their arrival: a set has another order in each process, and a replay must choose the same.
        self._waiting: dict[Waiter, None] = {}
        self._dismissed = False

    @property
    def has_any(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    def enter(self) -> Waiter:
        """Add a waiter; it expires at once if there is no place for it."""
        now = workflow.time()
        staying = [waiter for waiter in self._waiting if not waiter.expired]
        if len(staying) >= MAX_WAITERS:
            oldest = min(staying, key=lambda waiter: waiter.since)
            oldest.expired = now - oldest.since >= self._patience_seconds
        has_place = sum(not waiter.expired for waiter in staying) < MAX_WAITERS
        waiter = Waiter(since=now, expired=self._dismissed or not has_place)
        if not waiter.expired:
            self._waiting[waiter] = None
        return waiter

    async def wait(self, waiter: Waiter | None, done: Callable[[], bool]) -> None:
        """Wait until there is an answer, or until the waiter expires."""
        await workflow.wait_condition(lambda: waiter is None or waiter.expired or done())
        self.leave(waiter)

    def leave(self, waiter: Waiter | None) -> None:
        """Remove a waiter."""
        if waiter:
            self._waiting.pop(waiter, None)

    def dismiss(self) -> None:
        """Release all waiters, present and future: this workflow run is about to end."""
        self._dismissed = True
        for waiter in self._waiting:
            waiter.expired = True
