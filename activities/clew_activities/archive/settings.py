"""How an archive is laid out. What was written under other settings stays readable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """What an `Archive` is made with.

    Attributes:
        segment_bytes: About the most that a segment has; a single larger entry has one to itself.
        fanout: Children of one level that become one node of the next level.
        fork_time: How long a fork may be in the making; `ForkSession` gives up after minutes.
    """

    segment_bytes: int = 1_000_000
    fanout: int = 64
    fork_time: timedelta = timedelta(hours=1)


DEFAULT = ArchiveSettings()
