"""The archived part of a thread, read by kind and lane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic import TypeAdapter
from pydantic_core import to_json

from clew.thread.entries import Entry
from clew_activities.archive import Archive, SegmentDamaged

_entry = TypeAdapter(Entry)


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
                yield check_entry(entry, self.family)


def check_entry(entry: Entry, family: str) -> Entry:
    """Check the fields and the payload of an archived entry, before a session gets it.

    A checksum shows that an object has its name's content, not that Clew has written it. An entry that cannot be
    parsed would fail a session's workflow tasks.

    Raises:
        SegmentDamaged: The entry is malformed.
    """
    try:
        _entry.validate_json(to_json(entry.as_dict()), strict=True)
        _ = entry.body
    except (ValueError, TypeError, RecursionError) as error:
        raise SegmentDamaged(f"an object of family {family!r}", f"entry {entry.seq} is malformed: {error}") from None
    return entry
