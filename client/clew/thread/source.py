"""One thread out of its two parts: what the archive holds, and what the live session holds behind it.

A session that rolls over moves its oldest entries to the archive, also while its thread is being read. The rule:

1. Up to `archived_upto` the archive is read. The reader may know of less than the archive holds, never of more.
2. Behind that the session is asked for the next entry. Its answer stands if it still holds that entry.
3. If the session says that it begins later, or that it has ended, the parts are located again, and reading goes on
   at the same entry. The archive must hold it by now; otherwise the archive is damaged.
4. Where `archived_upto` is None the session has ended: the archive holds all of the thread, and nobody is asked.

So no entry is missing and none comes twice, whenever the border moves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from clew.contract import EntriesQuery
from clew.errors import ArchiveDamaged
from clew.thread.entries import Entry

REFS = frozenset({"request_id", "run_id", "call_id", "tool_call_id", "parent_call_id", "iteration", "source"})
"""The names in an entry's `refs` that an `EntriesQuery` can filter by."""


class Numbered(Protocol):
    """What is read from a thread: it knows its seq."""

    @property
    def seq(self) -> int:
        """The seq of the entry that it is, or is made of."""
        ...


Row = TypeVar("Row", bound=Numbered)
Row_co = TypeVar("Row_co", bound=Numbered, covariant=True)


@dataclass(frozen=True, slots=True)
class LivePage(Generic[Row_co]):
    """One page of what a live session holds.

    Attributes:
        rows: The rows, in order.
        next_seq: The seq at which the next page begins; None: this is the last page.
        first_live_seq: The first entry that the session holds, where the page was asked for before that; else 0.
    """

    rows: Sequence[Row_co]
    next_seq: int | None = None
    first_live_seq: int = 0


class ThreadParts(Protocol[Row_co]):
    """Where the two parts of one thread are, as far as the reader knows."""

    @property
    def archived_upto(self) -> int | None:
        """The newest entry that is known to be archived: -1 for none; None: the session has ended."""
        ...

    def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Row_co]:
        """The archived rows from `from_seq` to `to_seq`, both included, in order."""
        ...

    async def read_live(self, from_seq: int) -> LivePage[Row_co] | None:
        """The session's rows from `from_seq` on, as many as one page holds; None: the session has ended."""
        ...

    async def relocate(self, first_live_seq: int | None, /) -> Self:
        """Where the parts are now. The session has said that it begins at `first_live_seq`; None: it has ended."""
        ...


Parts = TypeVar("Parts", bound=ThreadParts[Entry])
AnyParts = TypeVar("AnyParts", bound=ThreadParts[Any])


async def read_forward(
    parts: ThreadParts[Row], from_seq: int = 0, to_seq: int | None = None, limit: int | None = None
) -> AsyncIterator[Row]:
    """The rows of a thread from `from_seq` to `to_seq`, both included, at most `limit`, in order.

    Raises:
        ArchiveDamaged: an entry is in neither part.
    """
    seq: int | None = from_seq
    left = limit
    while seq is not None and (to_seq is None or seq <= to_seq) and left != 0:
        upto = parts.archived_upto
        if upto is None or seq <= upto:
            rows = parts.read_archived(seq, to_seq if upto is None else _find_earlier(upto, to_seq))
            seq = None if upto is None else upto + 1
        else:
            page = await parts.read_live(seq)
            if page is None or page.first_live_seq > seq:
                parts = await _relocate(parts, page, seq)
                continue
            rows = _iterate_rows(page.rows, to_seq)
            seq = page.next_seq
        async for row in rows:
            yield row
            left = None if left is None else left - 1
            if left == 0:
                return


async def read_tail(parts: Parts, from_seq: int = 0, to_seq: int | None = None) -> tuple[Parts, list[Entry]]:
    """The entries up to `to_seq` that the live session alone holds, in order, and the parts as they were then.

    The archived part ends right before these entries, so the thread can be read backwards from them.

    Raises:
        ArchiveDamaged: an entry is in neither part.
    """
    rows: list[Entry] = []
    seq = _find_first_live_seq(parts, from_seq)
    while seq is not None and (to_seq is None or seq <= to_seq):
        page = await parts.read_live(seq)
        if page is None or page.first_live_seq > seq:
            parts = await _relocate(parts, page, seq)
            rows, seq = [], _find_first_live_seq(parts, from_seq)
        else:
            rows += page.rows
            seq = page.next_seq
    return parts, [row for row in rows if to_seq is None or row.seq <= to_seq]


async def _relocate(parts: AnyParts, page: LivePage[Any] | None, seq: int) -> AnyParts:
    located = await parts.relocate(None if page is None else page.first_live_seq)
    if page is not None and located.archived_upto is not None and located.archived_upto < seq:
        raise ArchiveDamaged(f"entry {seq} is neither in the archive nor in the session")
    return located


def _find_first_live_seq(parts: ThreadParts[Any], from_seq: int) -> int | None:
    return None if parts.archived_upto is None else max(from_seq, parts.archived_upto + 1)


def _find_earlier(seq: int, other: int | None) -> int:
    return seq if other is None else min(seq, other)


async def _iterate_rows(rows: Sequence[Row], to_seq: int | None) -> AsyncIterator[Row]:
    for row in rows:
        if to_seq is None or row.seq <= to_seq:
            yield row


def make_filter(query: EntriesQuery) -> Callable[[Entry], bool]:
    """A function that says whether an entry meets every filter of a query."""
    refs = query.model_dump(include=set(REFS), exclude_none=True)

    def meets(entry: Entry) -> bool:
        return (
            (query.kind is None or entry.kind == query.kind)
            and (query.context_ref is None or entry.lane == query.context_ref)
            and all(entry.refs.get(name) == value for name, value in refs.items())
        )

    return meets


class BackwardReader(Protocol):
    """Reads one state of a thread, the newest entry first, however the thread goes on meanwhile."""

    @property
    def upto(self) -> int:
        """The seq of the newest entry."""
        ...

    def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """The entries of a kind, and of a lane where one is named, from `to_seq` down to `from_seq`."""
        ...


@dataclass(frozen=True, slots=True)
class FrozenThread:
    """A thread as it was at one moment.

    Attributes:
        upto: The seq of its newest entry.
        live: What the session alone held, in order.
        archived: Reads everything before that; None: nothing is.
    """

    upto: int
    live: tuple[Entry, ...]
    archived: BackwardReader | None

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """The entries of a kind, and of a lane where one is named, from `to_seq` down to `from_seq`."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        for entry in reversed(self.live):
            if from_seq <= entry.seq <= upto and entry.kind == kind and context_ref in (None, entry.lane):
                yield entry
        if self.archived and from_seq <= self.archived.upto:
            older = self.archived.read(kind, context_ref=context_ref, from_seq=from_seq, to_seq=upto)
            async for entry in older:
                yield entry

    def truncate(self, seq: int) -> FrozenThread:
        """The same thread, read from an earlier seq back."""
        return replace(self, upto=min(seq, self.upto))
