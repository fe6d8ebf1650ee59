"""The activity `begin_task`: its end begins a session's next workflow task."""

from __future__ import annotations

from temporalio import activity


@activity.defn(name="begin_task")
async def begin_task() -> None:
    """Do nothing. A timer would take a second: the server delays the shortest ones."""
