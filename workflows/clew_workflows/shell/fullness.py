"""Measuring how full the event history of a workflow run is."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

from clew_workflows.protocol import RolloverThresholds

FULL = 3.0
"""Multiple of a threshold from which on no new message is accepted."""
PRESSING = 1.5
"""Multiple of a threshold from which on a rollover no longer waits for the end of a run."""
SUGGESTED_EVENTS = 500
"""Events below which the server's suggestion to continue as new is ignored: fetched entries may have caused it."""


@dataclass(slots=True)
class Fullness:
    """Counters of a workflow run, beside those that the SDK has of its history.

    Attributes:
        updates: The updates so far.
        signals: The signals so far.
    """

    updates: int = 0
    signals: int = 0
    _fetched_events: int = 0
    _fetched_bytes: int = 0

    def measure(self, thresholds: RolloverThresholds) -> float:
        """Measure the history: 1.0 is the first threshold that is reached.

        Entries that were carried over or fetched from the archive do not count. The next workflow run would have to
        fetch them again, and so each run would continue as new at once, without end.
        """
        info = workflow.info()
        events = info.get_current_history_length() - self._fetched_events
        size = info.get_current_history_size() - self._fetched_bytes
        suggested = info.is_continue_as_new_suggested() and events > SUGGESTED_EVENTS
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
