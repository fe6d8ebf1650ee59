"""The ids and times of entries. A workflow passes in its own clock and random numbers, so that it can be replayed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Stamps:
    """Makes ids and timestamps.

    Attributes:
        now: Returns the time, in UTC.
        random_bits: Returns a random number with a number of bits.
    """

    now: Callable[[], datetime]
    random_bits: Callable[[int], int]

    def make_entry_id(self) -> str:
        """Make the id of a new entry."""
        return f"e-{self.random_bits(64):016x}"

    def make_timestamp(self) -> str:
        """Format the present time as RFC 3339 in UTC, with milliseconds."""
        return format_timestamp(self.now())


MACHINE = Stamps(now=lambda: datetime.now(UTC), random_bits=secrets.randbits)
"""The system's clock and random numbers, for code outside of workflows."""


def format_timestamp(time: datetime) -> str:
    """Format a time in UTC as RFC 3339, in milliseconds."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
