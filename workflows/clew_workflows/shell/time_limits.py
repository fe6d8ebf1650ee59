"""The time limits of a session's waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from clew.contract import WAIT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """The time limits. They are a part of the workflow's code: a replay needs the values of the original run.

    Attributes:
        store_timeout: The time for the archive's store to answer while the session can continue without it.
        store_retry_interval: The time between two attempts, after the store did not answer.
        caller_patience: The time after which a caller that waits for an outcome gives way to another one.
        lists_interval: The time between two updates of the session in lists, of what can wait.
    """

    store_timeout: timedelta = timedelta(seconds=15)
    store_retry_interval: timedelta = timedelta(seconds=60)
    caller_patience: timedelta = timedelta(seconds=WAIT_SECONDS)
    lists_interval: timedelta = timedelta(seconds=10)
