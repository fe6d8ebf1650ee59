"""The bar of an approval in the Temporal UI: a timer that is cancelled when the last call has been decided."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial

from temporalio import workflow

from clew_workflows.core import approvals, labels
from clew_workflows.shell import execution
from clew_workflows.shell.background import LastingDuty
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.task_commands import TaskCommands

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
            label = labels.label_approval(approvals.list_pending(runtime.state), runtime.state)
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
        return (state.run.run_id, state.run.iteration) if state.run and approvals.list_pending(state) else None
