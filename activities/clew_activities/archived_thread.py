"""The archived part of a thread, read by kind and lane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from clew.thread.entries import Entry
from clew_activities.archive import Archive


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """Reads the entries under a root, the newest first.

    Attributes:
        archive: The archive.
        family: The family whose objects hold the thread.
        root: The root of its index; None: nothing is archived.
        upto: The seq of the newest entry.
    """

    archive: Archive
    family: str
    root: str | None
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries of a kind from `to_seq` down to `from_seq`; with `context_ref`, of that lane alone."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        async for entry in self.archive.read_back(self.family, self.root, from_seq, upto, kinds=frozenset({kind})):
            if context_ref is None or entry.lane == context_ref:
                yield entry
