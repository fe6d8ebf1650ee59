"""Workflow tasks without a command are dropped or joined: give each task one.

The server drops the first task of a workflow run if all that it did was to refuse updates; the event ids of the
dropped task go to the events that come next, and the worker that served it takes those for handled: signals are lost.
A replay joins a task with the task after it if neither it nor the task before it had a command; both are handled at
the time of the later one, and the signals of both before anything else.

Which commands a task has so far is in a private attribute of the SDK's workflow.

Seen in: temporalio 1.35.0, server 1.32.0 (CLI 1.9.1).
Reproductions: docs/upstream/dropped_first_task.md, docs/upstream/joined_tasks.md.
Can go: when neither reproduction fails. Recorded histories have the commands: leave it to new sessions by a patch.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow

MEMO_KEY = "clew_task"
"""The memo field that holds the event id of the newest task that was given a command."""


class TaskCommands:
    """Gives a command to workflow tasks that would have none."""

    def __init__(self) -> None:
        self._seen = 0

    def ensure(self) -> None:
        """Give the current task a command, unless it has one: one more event. Called when the task has done its work.

        The refusal of an update is none: the history does not have it.
        """
        task = workflow.info().get_current_history_length()
        if task != self._seen:
            self._seen = task
            runtime: Any = workflow._Runtime.current()
            if all(_is_refusal(command) for command in runtime._current_completion.successful.commands):
                workflow.upsert_memo({MEMO_KEY: task})


def _is_refusal(command: Any) -> bool:
    return bool(command.HasField("update_response") and command.update_response.HasField("rejected"))
