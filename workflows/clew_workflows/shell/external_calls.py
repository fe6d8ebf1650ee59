"""External calls' timeouts: one timer, for the call that expires next."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from temporalio import workflow

from clew_workflows.core import external_calls, labels, runs, tool_rounds
from clew_workflows.shell import execution
from clew_workflows.shell.background import LastingDuty
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.task_commands import TaskCommands


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
                    timeout_summary=labels.label_external(tool_rounds.list_outside(runtime.state), runtime.state),
                    event_groups=execution.group_by_run(runtime.state),
                )
            if self._next == expiry:
                before = runtime.effect
                # The server may fire a timer a fraction of a millisecond early.
                now = replace(runtime.now, time=max(expiry, workflow.time()))
                runtime.apply(external_calls.expire(runtime.state, now).then(runs.proceed, now))
                if runtime.effect is before:
                    # Nothing follows from the timer yet: the task that handles it would have no command.
                    self._task_commands.ensure()

    def _has_changed(self, expiry: float) -> bool:
        return self._next != expiry

    @property
    def _next(self) -> float | None:
        return external_calls.find_next_expiry(self._runtime.state)
