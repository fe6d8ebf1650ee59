"""When a session rolls over: the sizes of its event history."""

from __future__ import annotations

from pydantic import Field

from clew_workflows.protocol._value import Value


class RolloverThresholds(Value):
    """Sizes at which a session continues in a new workflow run. At three times a size it refuses new messages.

    At 3.25 times a size nothing more goes on. The largest sizes leave room for one step of a run then.

    Temporal ends a workflow run at 51 200 events, 50 MB, 2 000 updates or 10 000 signals. The thresholds are far
    lower, because a worker that takes a session over replays the whole workflow run, at about 0.4 ms of CPU an event:
    the default of `events` makes that half a second.

    Attributes:
        events: Events of the history.
        bytes: Bytes of the history.
        updates: Updates of the workflow run.
        signals: Signals of the workflow run.
    """

    events: int = Field(default=1_250, ge=50, le=15_000)
    bytes: int = Field(default=4_000_000, ge=50_000, le=13_000_000)
    updates: int = Field(default=350, ge=5, le=600)
    signals: int = Field(default=2_500, ge=5, le=3_000)
