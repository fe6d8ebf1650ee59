"""The budget of a workflow task: the bytes of text that it may tokenize, so that other sessions come between.

Activities count the tokens of what they answer. Texts of callers, and answers that no activity has counted, are
tokenized by the workflow: one task takes at most `MAX_TASK_BYTES` of them, and the next tasks take the others. Under
`o200k_base` so many bytes take about 0.03 seconds; a single word of that length, the slowest text, takes 0.14. Inputs
without much text count as 1 KiB each: a task decides some 250 of them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow

from clew.contract import MAX_MESSAGE_BYTES
from clew_workflows.shell.task_commands import TaskCommands

MAX_TASK_BYTES = MAX_MESSAGE_BYTES
"""Most bytes that one workflow task tokenizes of what was not counted before; the largest input has as many."""
BEGIN_TIMEOUT = timedelta(seconds=10)


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
        """Wait for the next workflow task, which an activity begins: a timer would take a second."""
        await workflow.execute_activity(
            "begin_task", start_to_close_timeout=BEGIN_TIMEOUT, summary="for further inputs and results"
        )
        self._task_commands.ensure()

    async def wait_to_spend(self, size: int) -> None:
        """Spend bytes of the current task, or of the first later one that has them left, in turn."""
        async with self._turn:
            while not self.spend(size):
                await self.wait_for_next_task()
