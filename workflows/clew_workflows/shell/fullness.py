"""How full the event history of a workflow run is."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

from clew_workflows.protocol import Thresholds

FULL = 3.0
"""Multiple of a threshold from which on no new message is accepted."""
PRESSING = 1.5
"""Multiple of a threshold from which on a rollover no longer waits for the end of a run."""
SUGGESTED_EVENTS = 500
"""Events below which the server's suggestion to continue as new is ignored: what was fetched may weigh as much."""


@dataclass(slots=True)
class Fullness:
    """What has come to this run of the workflow, beside what its history tells."""

    updates: int = 0
    signals: int = 0
    _fetched_events: int = 0
    _fetched_bytes: int = 0

    def share(self, thresholds: Thresholds) -> float:
        """How full the history is: 1 at a threshold. What came from the run before or the archive does not count.

        It would come again: a run that gave way because of it would be followed by another such run, without end.
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
