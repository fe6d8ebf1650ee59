"""A refused update changes the order of commands: conditions read what an earlier event has noted.

A task that refuses an update checks the conditions before it hands over its timers and results; a replay, which knows
nothing of the update, does so afterwards. A condition that the start of a task alone makes true (the length of the
history, the time) would issue its commands in another order on a replay.

Seen in: temporalio 1.35.0, server 1.32.0 (CLI 1.9.1).
Reproduction: docs/upstream/refused_beside_timer.md.
Can go: when the reproduction replays; conditions may then read `workflow.info()` and `workflow.time()`.
"""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow


@dataclass(slots=True)
class NotedTask:
    """What the newest task was that has handled something that the history has. Conditions must read it here.

    Attributes:
        events: The events of the history.
        bytes: The size of the history.
        suggests_rollover: Whether the server suggests to continue as new.
        is_moving: Whether the workflow is to move to another version of the workers.
        time: The time, in seconds of the workflow's clock.
    """

    events: int = 0
    bytes: int = 0
    suggests_rollover: bool = False
    is_moving: bool = False
    time: float = 0.0

    def note(self) -> None:
        """Note the current task: it handles something that the history has."""
        info = workflow.info()
        self.events, self.bytes = info.get_current_history_length(), info.get_current_history_size()
        self.suggests_rollover = info.is_continue_as_new_suggested()
        self.is_moving, self.time = info.is_target_worker_deployment_version_changed(), workflow.time()
