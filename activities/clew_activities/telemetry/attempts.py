"""One attempt of an activity: its ids, and when the next attempt follows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

_IDS = {"request_id": "request", "run_id": "run", "call_id": "call", "tool_call_id": "tool_call"}
"""The ids that the inputs of activities have, and their names in log lines."""


class TimeLeft:
    """The time until the server gives up an activity, by the server's clock. It begins with the attempt."""

    def __init__(self) -> None:
        self._begun_at = time.monotonic()

    @property
    def passed(self) -> timedelta:
        """The time since the attempt began."""
        return timedelta(seconds=time.monotonic() - self._begun_at)

    @property
    def since_scheduled(self) -> timedelta:
        """The time since the activity was scheduled, all earlier attempts included."""
        info = activity.info()
        return info.started_time - info.scheduled_time + self.passed

    def measure(self) -> timedelta | None:
        """Measure the time that is left for this attempt and all that follow; None: there is no limit."""
        info = activity.info()
        if info.schedule_to_close_timeout is None:
            return None
        return info.schedule_to_close_timeout - self.since_scheduled


def compute_retry_delay(failure: ApplicationError, time_left: timedelta | None) -> timedelta | None:
    """Compute when the server starts the attempt after this one; None: it starts none."""
    info, delay = activity.info(), failure.next_retry_delay
    if failure.non_retryable:
        return None
    if policy := info.retry_policy:
        if 0 < policy.maximum_attempts <= info.attempt:
            return None
        if delay is None:
            delay = policy.initial_interval * policy.backoff_coefficient ** min(info.attempt - 1, 30)
            delay = min(delay, policy.maximum_interval or delay)
    delay = delay or timedelta()
    return None if time_left is not None and delay >= time_left else delay


def list_ids(args: Sequence[Any]) -> dict[str, Any]:
    """List the ids that log lines of the current attempt have. None of them is a text of the conversation."""
    info = activity.info()
    ids: dict[str, Any] = {"session": info.workflow_id, "activity": info.activity_type}
    if args:
        ids |= {name: getattr(args[0], field, None) for field, name in _IDS.items()}
        ids["model"] = getattr(args[0], "model", None)
    return {name: value for name, value in ids.items() if isinstance(value, str)}
