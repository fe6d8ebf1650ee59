"""The shortest timer takes up to a second: an activity begins the next workflow task.

The server rounds the due time of timers up, by `history.timerProcessorMaxTimeShift`, which is a second by default. A
workflow that only wants its next task, so that others come between, would wait that long.

Seen in: server 1.32.0 (CLI 1.9.1).
Reproduction: docs/upstream/slow_timers.md.
Can go: when a timer of a millisecond takes milliseconds. Recorded histories have the activity.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow

BEGIN_TIMEOUT = timedelta(seconds=10)


@activity.defn(name="begin_task")
async def begin_task() -> None:
    """Do nothing: the end of this activity begins the workflow's next task."""


async def wait_for_next_task() -> None:
    """Wait for the workflow's next task."""
    await workflow.execute_activity(
        "begin_task", start_to_close_timeout=BEGIN_TIMEOUT, summary="for further inputs and results"
    )
