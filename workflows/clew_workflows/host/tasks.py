"""Workflow tasks and the history that they write: its size, and the work of one task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from temporalio import workflow

from clew_workflows.contract import MAX_MESSAGE_BYTES
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.temporal_faults.noted_task import NotedTask
from clew_workflows.temporal_faults.slow_timers import wait_for_next_task
from clew_workflows.temporal_faults.task_commands import TaskCommands

# Measuring how full the event history of a workflow run is.


FULL = 3.0
"""Multiple of a threshold from which on no new message is accepted."""
PRESSING = 1.5
"""Multiple of a threshold from which on a rollover no longer waits for the end of a run."""
SPENT = 3.25
"""Multiple of a threshold from which on even the work that was accepted waits for the archive."""
SUGGESTED_EVENTS = 500
"""Events below which the server's suggestion to continue as new is ignored: fetched entries may have caused it."""


@dataclass(slots=True)
class Fullness:
    """Counters of a workflow run, and the sizes of its history.

    Attributes:
        updates: The updates so far.
        signals: The signals so far.
        task: The newest workflow task, as it was noted. Conditions read this, and never the current task.
    """

    updates: int = 0
    signals: int = 0
    task: NotedTask = field(default_factory=NotedTask)
    _fetched_events: int = 0
    _fetched_bytes: int = 0

    def measure(self, thresholds: RolloverThresholds) -> float:
        """Measure the history: 1.0 is the first threshold that is reached.

        Entries that were carried over or fetched from the archive do not count. The next workflow run would have to
        fetch them again, and so each run would continue as new at once, without end.
        """
        events = self.task.events - self._fetched_events
        size = self.task.bytes - self._fetched_bytes
        suggested = self.task.suggests_rollover and events > SUGGESTED_EVENTS
        return max(
            events / thresholds.events,
            size / thresholds.bytes,
            self.updates / thresholds.updates,
            self.signals / thresholds.signals,
            PRESSING if suggested else 0.0,
        )

    def count_fetched(self, events: int, size: int) -> None:
        """Count events and bytes that were carried over or fetched from the archive."""
        self._fetched_events += events
        self._fetched_bytes += size


# The budget of a workflow task: the bytes of text that it may tokenize, so that other sessions come between.
#
# Activities count the tokens of what they answer. Texts of callers, and answers that no activity has counted, are
# tokenized by the workflow: one task takes at most `MAX_TASK_BYTES` of them, and the next tasks take the others.
# Under `o200k_base` so many bytes take about 0.03 seconds; a single word of that length, the slowest text, takes
# 0.14. Inputs without much text count as 1 KiB each: a task decides some 250 of them.


MAX_TASK_BYTES = MAX_MESSAGE_BYTES
"""Most bytes that one workflow task tokenizes of what was not counted before; the largest input has as many."""


class TaskBudget:
    """The bytes that the current workflow task may still tokenize."""

    def __init__(self, task_commands: TaskCommands) -> None:
        self._task_commands = task_commands
        self._task = 0
        self._spent = 0
        self._turn = asyncio.Lock()

    def spend(self, size: int) -> bool:
        """Spend bytes of the current task; returns whether it has them left. The first spender always gets them."""
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._spent = task, 0
        if self._spent and self._spent + size > MAX_TASK_BYTES:
            return False
        self._spent += size
        return True

    async def wait_for_next_task(self) -> None:
        """Wait for the next workflow task."""
        await wait_for_next_task()
        self._task_commands.ensure()

    async def wait_to_spend(self, size: int) -> None:
        """Spend bytes of the current task, or of the first later one that has them left, in turn."""
        async with self._turn:
            while not self.spend(size):
                await self.wait_for_next_task()
