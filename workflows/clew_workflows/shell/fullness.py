"""Measuring how full the event history of a workflow run is."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

from clew_workflows.protocol import RolloverThresholds

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
