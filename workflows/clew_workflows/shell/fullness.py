"""How full the history of a run of the workflow is."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

from clew_workflows.protocol import Thresholds

FULL = 3.0
"""At so many times a threshold no new message is taken."""
PRESSING = 1.5
"""At so many times a threshold a run of the session is not waited for any longer."""
SUGGESTED_EVENTS = 500
"""Below so many events of its own a run goes on, whatever the server suggests: what was fetched may weigh as much."""


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

    def fetched(self, events: int, size: int) -> None:
        """So much of the history is what was carried over or fetched from the archive."""
        self._fetched_events += events
        self._fetched_bytes += size
