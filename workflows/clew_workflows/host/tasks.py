"""Workflow tasks and the history that they write: its size, the command of each task, and the work of one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow

from clew_workflows.contract import MAX_MESSAGE_BYTES
from clew_workflows.protocol import RolloverThresholds

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
    """Counters of a workflow run, and the sizes of its history as `note_sizes` has noted them.

    Conditions must read these, and nothing of the current workflow task. A task that refuses an update checks them
    before it hands over its timers and results; a replay, which knows nothing of the update, does so afterwards. A
    condition that the start of a task alone makes true would issue its commands in another order on a replay
    (docs/upstream/refused_beside_timer.md).

    Attributes:
        updates: The updates so far.
        signals: The signals so far.
        time: The time, in seconds of the workflow's clock.
        is_moving: Whether the session is to move to another version of the workers.
    """

    updates: int = 0
    signals: int = 0
    time: float = 0.0
    is_moving: bool = False
    _events: int = 0
    _bytes: int = 0
    _suggested: bool = False
    _fetched_events: int = 0
    _fetched_bytes: int = 0

    def note_sizes(self) -> None:
        """Note the sizes and the time of the current task, which handles something that the history has."""
        info = workflow.info()
        self.time, self.is_moving = workflow.time(), info.is_target_worker_deployment_version_changed()
        self._events, self._bytes = info.get_current_history_length(), info.get_current_history_size()
        self._suggested = info.is_continue_as_new_suggested()

    def measure(self, thresholds: RolloverThresholds) -> float:
        """Measure the history: 1.0 is the first threshold that is reached.

        Entries that were carried over or fetched from the archive do not count. The next workflow run would have to
        fetch them again, and so each run would continue as new at once, without end.
        """
        events = self._events - self._fetched_events
        size = self._bytes - self._fetched_bytes
        suggested = self._suggested and events > SUGGESTED_EVENTS
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


# Giving each workflow task a command, so that a replay finds the same tasks.


MEMO_KEY = "clew_task"
"""The memo field that holds the event id of the newest task that was given a command."""


class TaskCommands:
    """Gives a command to workflow tasks that would have none.

    Two faults of Temporal concern tasks without a command (docs/upstream/dropped_first_task.md and joined_tasks.md):

    - The server drops the first task of a run if all that it did was to refuse updates. The event ids of the dropped
      task go to the events that come next, and the worker that served it takes those for handled: signals are lost.
    - A replay joins a task with the task after it if neither it nor the task before it had a command. Both are
      handled at the time of the later one, and the signals of both before anything else.
    """

    def __init__(self) -> None:
        self._given_at = 0

    def ensure(self) -> None:
        """Give the current task a command, once. It adds one event to the history."""
        task = workflow.info().get_current_history_length()
        if task != self._given_at:
            self._given_at = task
            workflow.upsert_memo({MEMO_KEY: task})

    def note(self) -> None:
        """Note that the current task has been given another command."""
        self._given_at = workflow.info().get_current_history_length()


# The budget of a workflow task: the bytes of text that it may tokenize, so that other sessions come between.
#
# Activities count the tokens of what they answer. Texts of callers, and answers that no activity has counted, are
# tokenized by the workflow: one task takes at most `MAX_TASK_BYTES` of them, and the next tasks take the others.
# Under `o200k_base` so many bytes take about 0.03 seconds; a single word of that length, the slowest text, takes
# 0.14. Inputs without much text count as 1 KiB each: a task decides some 250 of them.


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
