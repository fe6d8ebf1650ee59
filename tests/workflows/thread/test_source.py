"""One thread out of an archive and a live session, while the border between them moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.contract import EntriesQuery
from clew.errors import ArchiveDamaged
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.source import FrozenThread, LivePage, make_filter, read_forward, read_tail


def entry(seq: int, kind: str = "run", lane: str | None = None, **refs: str) -> Entry:
    payload = {"context_ref": lane} if lane else {}
    return Entry(seq, f"e-{seq}", kind, "2026-01-01T00:00:00.000Z", payload, refs, 1)  # type: ignore[arg-type]


@dataclass
class MovingThread:
    """A session with its archive. Before each query the session may roll over, or end."""

    length: int
    archived: int = 0
    page: int = 3
    ended: bool = False
    steps: list[int | None] = field(default_factory=list)
    queries: int = 0

    def move(self) -> None:
        """Take the next step: archive so many entries more; None: the session ends."""
        if self.steps and not self.ended:
            step = self.steps.pop(0)
            self.ended = step is None
            self.archived = self.length if step is None else min(self.archived + step, self.length)


@dataclass(frozen=True)
class Parts:
    """The parts of its thread, as a reader knows them."""

    thread: MovingThread
    archived_upto: int | None = -1

    async def read_archived(self, from_seq: int, to_seq: int | None) -> AsyncIterator[Entry]:
        assert self.archived_upto is None or (to_seq is not None and to_seq <= self.archived_upto)
        for seq in range(from_seq, self.thread.archived):
            if to_seq is None or seq <= to_seq:
                yield entry(seq)

    async def read_live(self, from_seq: int) -> LivePage[Entry] | None:
        thread = self.thread
        thread.queries += 1
        thread.move()
        if thread.ended:
            return None
        start = max(from_seq, thread.archived)
        seqs = range(start, min(start + thread.page, thread.length))
        following = seqs.stop if seqs.stop < thread.length and seqs else None
        before = thread.archived if from_seq < thread.archived else 0
        return LivePage(tuple(map(entry, seqs)), following, before)

    async def relocate(self, first_live_seq: int | None) -> Self:
        assert (first_live_seq is None) == self.thread.ended
        return replace(self, archived_upto=None if first_live_seq is None else self.thread.archived - 1)


def forward(thread: MovingThread, known: int | None, *limits: int | None) -> list[int]:
    async def read() -> list[int]:
        return [row.seq async for row in read_forward(Parts(thread, known), *limits)]  # type: ignore[arg-type]

    return asyncio.run(read())


threads = st.builds(
    MovingThread,
    length=st.integers(0, 20),
    page=st.integers(1, 5),
    steps=st.lists(st.none() | st.integers(0, 6), max_size=8),
)


@given(thread=threads, archived=st.integers(0, 20), known=st.integers(-1, 19), from_seq=st.integers(0, 22))
def test_every_entry_comes_once_whatever_rolls_over_meanwhile(
    thread: MovingThread, archived: int, known: int, from_seq: int
) -> None:
    """In order, without a gap, also where the session ends while it is read."""
    thread.archived = min(archived, thread.length)
    assert forward(thread, min(known, thread.archived - 1), from_seq) == list(range(from_seq, thread.length))


@given(
    thread=threads,
    from_seq=st.integers(0, 22),
    to_seq=st.none() | st.integers(0, 22),
    limit=st.none() | st.integers(0, 9),
)
def test_bounds_hold_in_both_parts(
    thread: MovingThread, from_seq: int, to_seq: int | None, limit: int | None
) -> None:
    """`to_seq` is the last entry that is read and `limit` the number of entries, wherever the border is."""
    last = thread.length if to_seq is None else min(to_seq + 1, thread.length)
    assert forward(thread, -1, from_seq, to_seq, limit) == list(range(from_seq, last))[:limit]


def test_the_session_is_not_asked_for_what_is_archived() -> None:
    """A reader that knows how much is archived needs no query for that."""
    thread = MovingThread(length=10, archived=6)
    assert forward(thread, 5, 0, 5) == [0, 1, 2, 3, 4, 5]
    assert thread.queries == 0


def test_an_ended_session_is_read_from_its_archive_alone() -> None:
    thread = MovingThread(length=10, archived=10, ended=True)
    assert forward(thread, None) == list(range(10))
    assert thread.queries == 0


@given(thread=threads, from_seq=st.integers(0, 22), to_seq=st.none() | st.integers(0, 22))
def test_the_tail_begins_where_the_archive_ends(thread: MovingThread, from_seq: int, to_seq: int | None) -> None:
    """Read backwards, the tail and then the archived part are the thread without a gap."""
    parts, tail = asyncio.run(read_tail(Parts(thread), from_seq, to_seq))
    upto = thread.length - 1 if to_seq is None else min(to_seq, thread.length - 1)
    border = upto if parts.archived_upto is None else parts.archived_upto
    assert [row.seq for row in tail] == list(range(max(border + 1, from_seq), upto + 1))


@dataclass(frozen=True)
class Lost(Parts):
    """An archive that does not get what the session has put away."""

    async def relocate(self, first_live_seq: int | None) -> Self:
        return self


async def test_what_neither_part_holds_is_damage() -> None:
    """An entry that the session has given up and the archive does not have is named."""
    lost = Lost(MovingThread(length=10, archived=6), archived_upto=3)
    rows = read_forward(lost)
    assert [(await anext(rows)).seq for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ArchiveDamaged, match="entry 4 is neither"):
        await anext(rows)
    with pytest.raises(ArchiveDamaged, match="entry 4 is neither"):
        await read_tail(lost)


def test_a_filter_holds_an_entry_to_every_condition() -> None:
    """Kind, lane and refs that a query names must all be met; what it leaves out may be anything."""
    said = entry(3, "ai_message", "draft", request_id="r", call_id="c")
    for met in ({}, {"kind": "ai_message"}, {"context_ref": "draft", "request_id": "r"}, {"call_id": "c"}):
        assert make_filter(EntriesQuery(**met))(said), met  # type: ignore[arg-type]
    for missed in ({"kind": "run"}, {"context_ref": "default"}, {"request_id": "r", "call_id": "other"}):
        assert not make_filter(EntriesQuery(**missed))(said), missed  # type: ignore[arg-type]


async def test_a_frozen_thread_is_read_backwards_across_its_parts() -> None:
    """Live entries first, then the archived ones, of a kind and a lane, between two seqs."""
    kinds = [("ai_message", "default"), ("run", None), ("ai_message", "draft")] * 3
    entries = tuple(entry(seq, kind, lane) for seq, (kind, lane) in enumerate(kinds))
    thread = FrozenThread(8, entries[5:], FrozenThread(4, entries[:5], None))

    async def seqs(of: FrozenThread, kind: str, lane: str | None = None, *between: int) -> list[int]:
        bounds = dict(zip(("from_seq", "to_seq"), between, strict=False))
        return [one.seq async for one in of.read(kind, context_ref=lane, **bounds)]

    assert await seqs(thread, "ai_message") == [8, 6, 5, 3, 2, 0]
    assert await seqs(thread, "ai_message", "draft") == [8, 5, 2]
    assert await seqs(thread, "run", None, 2, 6) == [4]
    assert await seqs(thread.truncate(5), "ai_message") == [5, 3, 2, 0]
    assert (thread.truncate(5).upto, thread.truncate(20).upto) == (5, 8)
