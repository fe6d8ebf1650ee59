"""The ids and times of entries. What they are made of is passed in: a workflow must not ask the machine."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Stamps:
    """Makes ids and timestamps.

    Attributes:
        now: The clock, in UTC.
        random_bits: A random number of so many bits.
    """

    now: Callable[[], datetime]
    random_bits: Callable[[int], int]

    def make_entry_id(self) -> str:
        """A new id of an entry."""
        return f"e-{self.random_bits(64):016x}"

    def make_timestamp(self) -> str:
        """The time, as entries have it: RFC 3339 in UTC, in milliseconds."""
        return self.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


MACHINE = Stamps(now=lambda: datetime.now(UTC), random_bits=secrets.randbits)
"""The clock and the random numbers of this machine, for what is done outside of workflows."""
