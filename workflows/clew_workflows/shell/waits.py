"""How long a session waits, and lets others wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from clew.contract import MAX_WAIT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A part of the workflow's code: a replay has to find what its run had.

    Attributes:
        store: For the archive's store, where the session could do without it; its callers wait as long.
        pause: Until a store is asked again that did not answer.
        caller: For the outcome of a request, until the caller is told that it is still running.
    """

    store: timedelta = timedelta(seconds=15)
    pause: timedelta = timedelta(seconds=60)
    caller: timedelta = timedelta(seconds=MAX_WAIT_SECONDS)
