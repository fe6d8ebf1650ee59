"""Byte-exact comparison of the entries of one thread from several sources."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from clew_activities.archive import ObjectChanged, ObjectDamaged, ObjectMissing, StoreUnavailable, ThreadMismatch
from clew_activities.archive.errors import KeyMissing
from clew_workflows.contract import errors
from clew_workflows.contract.errors import ArchiveUnavailable, ClewError, UnknownKey
from clew_workflows.thread.entries import Entry

# The archive's errors, raised as the client's errors.


class ArchiveDamaged(ClewError):
    """An object of the archive is missing or damaged."""

    type = "archive_damaged"


@asynccontextmanager
async def translate_store_errors() -> AsyncIterator[None]:
    """Raise `StoreUnavailable` as `ArchiveUnavailable`. The caller handles missing and damaged objects."""
    try:
        yield
    except KeyMissing as error:
        raise UnknownKey(str(error)) from error
    except StoreUnavailable as error:
        raise ArchiveUnavailable(f"{error}. Check CLEW_STORE, the network and the store's credentials") from error


@asynccontextmanager
async def translate_archive_errors() -> AsyncIterator[None]:
    """Raise every error of the archive as one of the client's errors."""
    try:
        async with translate_store_errors():
            yield
    except (ObjectDamaged, ObjectMissing) as error:
        raise ArchiveDamaged(str(error)) from error
    except (ObjectChanged, ThreadMismatch) as error:
        raise errors.ThreadMismatch(str(error)) from error


Origin = Literal["history", "live", "archive", "call", "file"]
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference that an audit has found.

    Attributes:
        where: The source that differs.
        problem: What differs.
        name: The object, workflow run, lane or call in that source.
        seq: Seq of the entry.
        field: Path of the field in the entry.
    """

    where: Origin
    problem: str
    name: str | None = None
    seq: int | None = None
    field: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        parts = [self.where, self.name, None if self.seq is None else f"entry {self.seq}", self.field]
        return f"{', '.join(part for part in parts if part)}: {self.problem}"


class JoinedThread:
    """A thread joined from several sources, which must agree on every entry.

    Attributes:
        entries: The entries by seq, as the first source has them.
        only: Number of entries by the source that had them first.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.only: dict[Origin, int] = {}
        self._first: dict[int, tuple[Origin, str | None]] = {}

    def __contains__(self, seq: int) -> bool:
        return seq in self.entries

    def add(self, entry: Entry, origin: Origin, name: str | None = None) -> Iterator[Difference]:
        """Add an entry of a source. Yields the differences from the entry that an earlier source had."""
        known = self.entries.get(entry.seq)
        if known is None:
            self.entries[entry.seq] = entry
            self._first[entry.seq] = origin, name
            self.only[origin] = self.only.get(origin, 0) + 1
            return
        first_origin = " ".join(filter(None, self._first[entry.seq]))
        for field, ours, theirs in find_differences(known.as_dict(), entry.as_dict()):
            yield Difference(
                origin, f"{_shorten(theirs)}, but {_shorten(ours)} in {first_origin}", name, entry.seq, field
            )

    @property
    def last_seq(self) -> int:
        """Seq of the newest entry; -1: there is none."""
        return max(self.entries, default=-1)

    def find_gaps(self) -> Iterator[tuple[int, int]]:
        """Find the ranges of seqs that are missing before the newest entry, each as its first and last seq."""
        for before, after in pairwise((-1, *sorted(self.entries))):
            if after > before + 1:
                yield before + 1, after - 1


_MISSING = object()


def find_differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Find the paths at which two JSON values differ. Yields each path with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in _list_keys(ours, theirs):
            yield from find_differences(
                ours.get(key, _MISSING), theirs.get(key, _MISSING), f"{path}.{key}" if path else key
            )
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from find_differences(one, other, f"{path}[{number}]")
    elif _encode(ours) != _encode(theirs):
        yield path, ours, theirs


def _list_keys(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterable[str]:
    return dict.fromkeys((*ours, *theirs))


def _encode(value: Any) -> str:
    # As JSON text, because in Python 1, 1.0 and True are equal.
    return "nothing" if value is _MISSING else json.dumps(value, sort_keys=True)


def _shorten(value: Any) -> str:
    text = _encode(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
