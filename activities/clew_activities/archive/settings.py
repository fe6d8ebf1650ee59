"""How an archive is laid out. Archives written with other settings stay readable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The settings of an `Archive`.

    Attributes:
        segment_bytes: Approximate upper bound of a segment, in bytes. A larger entry has a segment of its own.
        fanout: Number of children of one level that become one node of the next level.
        fork_time: Time after which a family member without a head no longer counts as a fork in progress.
    """

    segment_bytes: int = 1_000_000
    fanout: int = 64
    fork_time: timedelta = timedelta(hours=1)


DEFAULT = ArchiveSettings()
