"""Entries of one thread from several places, compared to the last byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from clew.thread.entries import Entry

Where = Literal["history", "live", "archive", "call", "file"]
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be: where, in which object or run or call, at which entry and field."""

    where: Where
    problem: str
    name: str | None = None
    seq: int | None = None
    field: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What is known of it."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        place = [self.where, self.name, None if self.seq is None else f"entry {self.seq}", self.field]
        return f"{', '.join(part for part in place if part)}: {self.problem}"


class JoinedThread:
    """A thread put together from several places; what they say of the same entry must be the same."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.only: dict[Where, int] = {}
        self._first: dict[int, tuple[Where, str | None]] = {}

    def __contains__(self, seq: int) -> bool:
        return seq in self.entries

    def add(self, entry: Entry, where: Where, name: str | None = None) -> Iterator[Difference]:
        """Take an entry as a place has it; how it differs from what is known of it."""
        known = self.entries.get(entry.seq)
        if known is None:
            self.entries[entry.seq] = entry
            self._first[entry.seq] = where, name
            self.only[where] = self.only.get(where, 0) + 1
            return
        origin = " ".join(filter(None, self._first[entry.seq]))
        for field, ours, theirs in find_differences(known.as_json(), entry.as_json()):
            yield Difference(where, f"{_brief(theirs)}, but {_brief(ours)} in {origin}", name, entry.seq, field)

    @property
    def last_seq(self) -> int:
        """The seq of the newest entry; -1 while there is none."""
        return max(self.entries, default=-1)

    def find_gaps(self) -> Iterator[tuple[int, int]]:
        """The runs of seqs, first and last, that are missing up to the newest entry."""
        for before, after in pairwise((-1, *sorted(self.entries))):
            if after > before + 1:
                yield before + 1, after - 1


_MISSING = object()


def find_differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The paths at which two JSON values differ, with what stands there on either side."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in _keys(ours, theirs):
            yield from find_differences(
                ours.get(key, _MISSING), theirs.get(key, _MISSING), f"{path}.{key}" if path else key
            )
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from find_differences(one, other, f"{path}[{number}]")
    elif _text(ours) != _text(theirs):
        yield path, ours, theirs


def _keys(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterable[str]:
    return dict.fromkeys((*ours, *theirs))


def _text(value: Any) -> str:
    # As text, because to Python 1 and 1.0 and true are equal.
    return "nothing" if value is _MISSING else json.dumps(value, sort_keys=True)


def _brief(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
