"""The time limits of a session's waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from clew.contract import MAX_WAIT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """The time limits. They are a part of the workflow's code: a replay needs the values of the original run.

    Attributes:
        store_timeout: The time for the archive's store to answer while the session can continue without it.
        store_retry_interval: The time between two attempts, after the store did not answer.
        caller_timeout: The time until a caller that waits for an outcome is answered `running`.
    """

    store_timeout: timedelta = timedelta(seconds=15)
    store_retry_interval: timedelta = timedelta(seconds=60)
    caller_timeout: timedelta = timedelta(seconds=MAX_WAIT_SECONDS)
