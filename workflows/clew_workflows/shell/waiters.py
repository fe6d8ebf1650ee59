"""Waiters: callers that wait for the outcome of a request, for a limited time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow

from clew.contract import MAX_WAITERS
from clew_workflows.shell.background import start_background_task
from clew_workflows.shell.task_commands import TaskCommands


@dataclass(eq=False, slots=True)
class Waiter:
    """A waiting caller.

    Attributes:
        since: When it arrived, in seconds of the workflow's clock.
        expired: It is to be answered `running`: its time is over, or too many callers wait.
    """

    since: float
    expired: bool


class Waiters:
    """The waiters of one workflow run. They share one timer, so that a turn adds no timer to the history.

    Attributes:
        expired: The number of waits whose time was over.
        on_timer: What the task that handles the timer does first.
    """

    def __init__(self, longest: timedelta, task_commands: TaskCommands) -> None:
        self._task_commands = task_commands
        self._longest_seconds = longest.total_seconds()
        self._waiting: set[Waiter] = set()
        self._expiring = False
        self._dismissed = False
        self.expired = 0
        self.on_timer: Callable[[], None] = lambda: None

    @property
    def has_any(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    @property
    def is_timed(self) -> bool:
        """Whether the timer runs."""
        return self._expiring

    def enter(self) -> Waiter:
        """Add a waiter; it expires at once if there are too many."""
        waiter = Waiter(since=workflow.time(), expired=self._dismissed or len(self._waiting) >= MAX_WAITERS)
        if not waiter.expired:
            self._waiting.add(waiter)
            if not self._expiring:
                self._expiring = True
                start_background_task(self._expire_long_waits())
        return waiter

    async def wait(self, waiter: Waiter | None, done: Callable[[], bool]) -> None:
        """Wait until there is an answer, or until the waiter expires."""
        await workflow.wait_condition(lambda: waiter is None or waiter.expired or done())
        self.leave(waiter)

    def leave(self, waiter: Waiter | None) -> None:
        """Remove a waiter."""
        if waiter:
            self._waiting.discard(waiter)

    def dismiss(self) -> None:
        """Release all waiters, present and future: this workflow run is about to end."""
        self._dismissed = True
        for waiter in self._waiting:
            waiter.expired = True

    async def _expire_long_waits(self) -> None:
        while waiting := [waiter for waiter in self._waiting if not waiter.expired]:
            oldest = min(waiter.since for waiter in waiting)
            await workflow.sleep(
                max(oldest + self._longest_seconds - workflow.time(), 1),
                summary="callers that wait are answered by then",
            )
            self.on_timer()
            for waiter in waiting:
                if waiter in self._waiting and workflow.time() - waiter.since >= self._longest_seconds:
                    waiter.expired = True
                    self.expired += 1
        self._expiring = False
        if not self._waiting:
            # The timer has released no waiter: the task that handles it would have no command.
            self._task_commands.ensure()
