"""The limits of Temporal are out of reach of a session that waits for its archive."""

from __future__ import annotations

from clew_workflows.host.runtime import SPENT
from clew_workflows.protocol import RolloverThresholds

LIMITS = {"events": 51_200, "bytes": 50 * 1024 * 1024, "updates": 2_000, "signals": 10_000}
"""What Temporal ends a workflow run at."""
LARGEST_STEP = {"events": 300, "bytes": 5_500_000, "updates": 10, "signals": 0}
"""What one step of a run may add: a reply, and 64 tool calls with results of 64 KiB."""


def test_the_largest_thresholds_leave_room_for_a_step() -> None:
    """A session that may not go on without its archive is still below what Temporal ends it at."""
    for name, limit in LIMITS.items():
        (largest,) = [each.le for each in RolloverThresholds.model_fields[name].metadata if hasattr(each, "le")]
        assert largest * SPENT + LARGEST_STEP[name] < limit, name
