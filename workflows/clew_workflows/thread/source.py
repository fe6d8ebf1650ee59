"""Read one thread from its two parts: the archive, and the live session after it.

A session that rolls over moves its oldest entries to the archive, also while a reader reads its thread. The rule:

1. The reader reads the archive up to `archived_upto`. The archive may have more entries by then, never fewer.
2. After that it queries the session for the next entries. The page is used if the session still has the first one.
3. If the session begins later, or has ended, the reader locates the parts again and goes on at the same entry. The
   archive must have that entry by now; otherwise it is damaged.
4. Where `archived_upto` is None the session has ended: the archive has the complete thread.

So no entry is missing and none comes twice, whenever entries move.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from clew_workflows.contract import EntriesQuery
from clew_workflows.contract.errors import ArchiveDamaged
from clew_workflows.thread.entries import Entry

REFS = frozenset({"request_id", "run_id", "call_id", "tool_call_id", "parent_call_id", "iteration", "source"})
"""The names in an entry's `refs` that an `EntriesQuery` can filter by."""


class Numbered(Protocol):
    """A row that is read from a thread: it has a seq."""

    @property
    def seq(self) -> int:
        """The seq of the entry that the row is made of."""
        ...


Row = TypeVar("Row", bound=Numbered)
Row_co = TypeVar("Row_co", bound=Numbered, covariant=True)


@dataclass(frozen=True, slots=True)
class LivePage(Generic[Row_co]):
    """One page of a live session's rows.

    Attributes:
        rows: The rows, in order.
        next_seq: The seq at which the next page begins; None: this is the last page.
        first_live_seq: The session's first entry, if the page was to begin before that entry; else 0.
    """

    rows: Sequence[Row_co]
    next_seq: int | None = None
    first_live_seq: int = 0


class ThreadParts(Protocol[Row_co]):
    """The two parts of one thread, as the reader last located them."""

    @property
    def archived_upto(self) -> int | None:
        """The newest entry known to be archived; -1: none is; None: the session has ended."""
        ...

    def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Row_co]:
        """Read the archived rows from `from_seq` to `to_seq`, both included, in order."""
        ...

    async def read_live(self, from_seq: int) -> LivePage[Row_co] | None:
        """Read a page of the session's rows, beginning at `from_seq`; None: the session has ended."""
        ...

    async def relocate(self, first_live_seq: int | None, /) -> Self:
        """Locate the parts again, after the session began at `first_live_seq`; None: it has ended."""
        ...


Parts = TypeVar("Parts", bound=ThreadParts[Entry])
AnyParts = TypeVar("AnyParts", bound=ThreadParts[Any])


async def read_forward(
    parts: ThreadParts[Row], from_seq: int = 0, to_seq: int | None = None, limit: int | None = None
) -> AsyncIterator[Row]:
    """Read the rows of a thread from `from_seq` to `to_seq`, both included, at most `limit`, in order.

    Raises:
        ArchiveDamaged: An entry is in neither part.
    """
    seq: int | None = from_seq
    left = limit
    while seq is not None and (to_seq is None or seq <= to_seq) and left != 0:
        upto = parts.archived_upto
        if upto is None or seq <= upto:
            rows = parts.read_archived(seq, to_seq if upto is None else _choose_earlier(upto, to_seq))
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
    """Read the entries up to `to_seq` that only the live session has, in order, and the parts at that time.

    The archived part ends right before these entries, so the thread can be read backwards from them.

    Raises:
        ArchiveDamaged: An entry is in neither part.
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


def _choose_earlier(seq: int, other: int | None) -> int:
    return seq if other is None else min(seq, other)


async def _iterate_rows(rows: Sequence[Row], to_seq: int | None) -> AsyncIterator[Row]:
    for row in rows:
        if to_seq is None or row.seq <= to_seq:
            yield row


def make_filter(query: EntriesQuery) -> Callable[[Entry], bool]:
    """Make a function that returns whether an entry meets every filter of a query."""
    refs = query.model_dump(include=set(REFS), exclude_none=True)

    def meets(entry: Entry) -> bool:
        return (
            (query.kind is None or entry.kind == query.kind)
            and (query.context_ref is None or entry.lane == query.context_ref)
            and all(entry.refs.get(name) == value for name, value in refs.items())
        )

    return meets


class BackwardReader(Protocol):
    """Reads a thread as it was at one moment, the newest entry first."""

    @property
    def upto(self) -> int:
        """The seq of the newest entry."""
        ...

    def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries of a kind, and of a lane if one is named, from `to_seq` down to `from_seq`."""
        ...


@dataclass(frozen=True, slots=True)
class FrozenThread:
    """A thread as it was at one moment.

    Attributes:
        upto: The seq of the newest entry.
        live: The entries that only the session had, in order.
        archived: Reads the entries before those; None: nothing was archived.
    """

    upto: int
    live: tuple[Entry, ...]
    archived: BackwardReader | None

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries of a kind, and of a lane if one is named, from `to_seq` down to `from_seq`."""
        upto = self.upto if to_seq is None else min(to_seq, self.upto)
        for entry in reversed(self.live):
            if from_seq <= entry.seq <= upto and entry.kind == kind and context_ref in (None, entry.lane):
                yield entry
        if self.archived and from_seq <= self.archived.upto:
            older = self.archived.read(kind, context_ref=context_ref, from_seq=from_seq, to_seq=upto)
            async for entry in older:
                yield entry

    def truncate(self, seq: int) -> FrozenThread:
        """Return the same thread without the entries after a seq."""
        return replace(self, upto=min(seq, self.upto))
