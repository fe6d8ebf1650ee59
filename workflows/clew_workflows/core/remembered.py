"""Outcomes that a session remembers when their entries are in the archive.

Few of them are ever asked for, so they stay packed: a thousand take 50 KB of a worker, and 2 MB as objects.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from clew.outcomes import RequestOutcome

Columns = Mapping[str, Sequence[Any]]
"""Outcomes as one list of values for each field, which compress to less than a list of outcomes."""

_GROWING = ("run_id", "answer_seq", "last_seq")
_RUN_ID = re.compile(r"run-([1-9][0-9]{0,14})")
"""The ids that a session makes. A thread that was imported may have any, and Python reads 4 300 digits at most."""

_outcomes: TypeAdapter[list[RequestOutcome]] = TypeAdapter(list[RequestOutcome])


@dataclass(frozen=True, slots=True)
class Remembered:
    """Outcomes of one session, oldest first.

    Attributes:
        ids: The ids of their requests, each as JSON between line breaks.
        packed: The outcomes as compressed JSON.
    """

    ids: str = "\n"
    packed: bytes = b""

    @classmethod
    def pack(cls, known: Sequence[RequestOutcome]) -> Remembered:
        """Pack outcomes."""
        if not known:
            return cls()
        ids = "".join(_make_line(outcome.request_id) for outcome in known)
        return cls(f"\n{ids}", zlib.compress(to_json(make_columns(known)), 1))

    def unpack(self) -> list[RequestOutcome]:
        """Unpack all outcomes."""
        return read_columns(from_json(zlib.decompress(self.packed))) if self.packed else []

    def find(self, request_id: str) -> RequestOutcome | None:
        """Find the outcome of a request."""
        if request_id not in self:
            return None
        return next((outcome for outcome in self.unpack() if outcome.request_id == request_id), None)

    def __contains__(self, request_id: str) -> bool:
        return f"\n{_make_line(request_id)}" in self.ids


def _make_line(request_id: str) -> str:
    """Write an id as a line. As JSON it has no line break within it."""
    return f"{to_json(request_id).decode()}\n"


def make_columns(known: Sequence[RequestOutcome]) -> Columns:
    """Write outcomes field by field, and what grows with the thread as differences."""
    rows = _outcomes.dump_python([*known], mode="json", exclude_none=True)
    columns = {name: [row.get(name) for row in rows] for name in RequestOutcome.model_fields}
    columns["run_id"] = [_find_number(run_id) for run_id in columns["run_id"]]
    return {**columns, **{name: [*_subtract(columns[name])] for name in _GROWING}}


def read_columns(columns: Columns) -> list[RequestOutcome]:
    """Read what `make_columns` has written.

    Raises:
        KeyError: A field is missing.
        TypeError: A field is no list.
        ValueError: The lists have different lengths, or a value is no outcome's.
    """
    lists = {**columns, **{name: [*_add(columns[name])] for name in _GROWING}}
    lists["run_id"] = [f"run-{number}" if isinstance(number, int) else number for number in lists["run_id"]]
    rows = zip(*lists.values(), strict=True)
    return _outcomes.validate_python(
        [{name: value for name, value in zip(lists, row, strict=True) if value is not None} for row in rows]
    )


def _find_number(run_id: str | None) -> int | str | None:
    """Find the number in a run's id; the id itself, if it is not one that a session makes."""
    match = _RUN_ID.fullmatch(run_id or "")
    return int(match[1]) if match else run_id


def _subtract(values: Iterable[Any]) -> Iterator[Any]:
    """Replace each number by its difference from the one before it. Other values stay."""
    before = 0
    for value in values:
        if isinstance(value, int):
            yield value - before
            before = value
        else:
            yield value


def _add(values: Iterable[Any]) -> Iterator[Any]:
    """Undo `_subtract`."""
    before = 0
    for value in values:
        if isinstance(value, int):
            before += value
            yield before
        else:
            yield value
