"""What a session does beside its main coroutine."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from temporalio import workflow

from clew_workflows.host import execution
from clew_workflows.host.runtime import Runtime
from clew_workflows.session import outside, runs, tool_rounds, ui
from clew_workflows.temporal_faults.task_commands import TaskCommands

# Coroutines that run beside the main one of a workflow.


class Duty(Protocol):
    """What a session does beside its main coroutine, whenever it is due."""

    @property
    def is_due(self) -> bool:
        """Whether it is to be done now. Once it has begun it is not due."""
        ...

    def begin(self) -> None:
        """Do it, or start a task that does."""
        ...


class LastingDuty(ABC):
    """A duty that a task of its own does. It is not due again before that task has ended."""

    def __init__(self) -> None:
        self._is_running = False

    @property
    def is_due(self) -> bool:
        """Whether a task is to be started."""
        return not self._is_running and self._is_wanted

    def begin(self) -> None:
        """Start the task."""
        self._is_running = True
        start_background_task(self._run())

    async def _run(self) -> None:
        await self._perform()
        self._is_running = False

    @property
    @abstractmethod
    def _is_wanted(self) -> bool:
        """Whether there is something to do."""

    @abstractmethod
    async def _perform(self) -> None:
        """Do it, and what follows it at once."""


async def serve_duties(*duties: Duty) -> None:
    """Begin duties as they become due, in their order. They share one wait: each would cost memory and time."""
    while True:
        await workflow.wait_condition(lambda: any(duty.is_due for duty in duties))
        for duty in duties:
            if duty.is_due:
                duty.begin()


def start_background_task(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine beside the main one. Its errors fail the workflow task, so that a corrected worker goes on."""
    asyncio.create_task(_run(coroutine))  # noqa: RUF006 - the workflow's loop holds its tasks


async def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        await coroutine
    except Exception as error:
        # Nothing awaits the task: asyncio would do no more than log the error. One of a condition fails the workflow
        # task.
        await workflow.wait_condition(partial(_raise, error))


def _raise(error: Exception) -> bool:
    raise error


# The bar of an approval in the Temporal UI: a timer that is cancelled when the last call has been decided.


LONGEST_BAR = timedelta(days=365)
"""The time of one timer. Approvals have no time limit: the next timer follows."""


class Approvals(LastingDuty):
    """Shows the waits for a person's decision of one session. A wait adds two events to the history."""

    def __init__(self, runtime: Runtime, task_commands: TaskCommands) -> None:
        super().__init__()
        self._runtime = runtime
        self._task_commands = task_commands

    @property
    def _is_wanted(self) -> bool:
        return self._round is not None and not self._runtime.state.closed

    async def _perform(self) -> None:
        runtime = self._runtime
        while self._is_wanted:
            label = ui.label_approval(outside.list_pending_approvals(runtime.state), runtime.state)
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    partial(self._has_ended, self._round),
                    timeout=LONGEST_BAR,
                    timeout_summary=label,
                    event_groups=execution.group_by_run(runtime.state),
                )
                continue
            # Nothing follows from the timer: the task that handles it would have no command.
            self._task_commands.ensure()

    def _has_ended(self, waiting: tuple[str, int] | None) -> bool:
        return self._runtime.state.closed or self._round != waiting

    @property
    def _round(self) -> tuple[str, int] | None:
        """The run and the number of the model call whose tool calls wait; None: none waits."""
        state = self._runtime.state
        return (
            (state.run.run_id, state.run.iteration) if state.run and outside.list_pending_approvals(state) else None
        )


# External calls' timeouts: one timer, for the call that expires next.


class ExternalCalls(LastingDuty):
    """Ends the external calls of one session whose time is over. The times survive a rollover: they are state."""

    def __init__(self, runtime: Runtime, task_commands: TaskCommands) -> None:
        super().__init__()
        self._runtime = runtime
        self._task_commands = task_commands

    @property
    def _is_wanted(self) -> bool:
        return self._next is not None and not self._runtime.state.closed

    async def _perform(self) -> None:
        runtime = self._runtime
        while (expiry := self._next) is not None and not runtime.state.closed:
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    partial(self._has_changed, expiry),
                    timeout=max(expiry - workflow.time(), 0.001),
                    timeout_summary=ui.label_external(tool_rounds.list_outside(runtime.state), runtime.state),
                    event_groups=execution.group_by_run(runtime.state),
                )
            if self._next == expiry:
                # The server may fire a timer a fraction of a millisecond early.
                now = replace(runtime.now, time=max(expiry, workflow.time()))
                runtime.apply(outside.expire_calls(runtime.state, now).then(runs.proceed, now))
                # The effect may follow later, as after a rollover: the task that handles the timer has a command.
                self._task_commands.ensure()

    def _has_changed(self, expiry: float) -> bool:
        return self._next != expiry

    @property
    def _next(self) -> float | None:
        return outside.find_next_expiry(self._runtime.state)
