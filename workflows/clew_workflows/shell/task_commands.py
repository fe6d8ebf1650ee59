"""Giving each workflow task a command, so that a replay finds the same tasks."""

from __future__ import annotations

from temporalio import workflow

MEMO_KEY = "clew_task"
"""The memo field that holds the event id of the newest task that was given a command."""


class TaskCommands:
    """Gives a command to workflow tasks that would have none.

    Two faults of Temporal concern tasks without a command (docs/upstream/dropped-first-task.md):

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
