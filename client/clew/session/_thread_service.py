"""Read a thread by the workflow `ReadThread`, page by page: it answers archived and live entries alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from clew.contract import READ_WORKFLOW, ReadThreadInput
from clew.session.handle import SessionHandle
from clew.thread.entries import Entry

PAGE_ENTRIES = {"config": 1, "summary": 1, "ai_context_operation": 10, "ai_message": 500}
"""Entries of each kind that one page has when a thread is read backwards."""


async def read_thread(handle: SessionHandle, query: ReadThreadInput) -> AsyncIterator[Entry]:
    """Read the entries that the query names, in order."""
    if query.newest is not None:
        for entry in [entry async for entry in _read_newest(handle, query)][::-1]:
            yield entry
        return
    remaining = query.limit
    while True:
        page = await _read_page(handle, query)
        for row in page["entries"]:
            yield Entry.from_json(row)
        remaining = None if remaining is None else remaining - len(page["entries"])
        if "next_seq" not in page or remaining == 0:
            return
        query = query.model_copy(update={"from_seq": page["next_seq"], "limit": remaining})


async def read_newest_entry(handle: SessionHandle, kind: str | None = None) -> Entry | None:
    """Read the thread's newest entry, or the newest one of a kind; None if there is none."""
    async for entry in _read_newest(handle, ReadThreadInput(session_id=handle.session_id, kind=kind, newest=1)):
        return entry
    return None


async def freeze_thread(handle: SessionHandle) -> FrozenService:
    """Fix the thread's newest entry, so that later ones are not read."""
    newest = await read_newest_entry(handle)
    return FrozenService(handle, newest.seq if newest else -1)


@dataclass(frozen=True, slots=True)
class FrozenService:
    """A thread up to a seq, read from the newest entry to the oldest.

    Attributes:
        handle: The session.
        upto: The seq of the newest entry.
    """

    handle: SessionHandle
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Read the entries of a kind, or of a kind and a lane, from `to_seq` down to `from_seq`."""
        upto: int | None = self.upto if to_seq is None else min(to_seq, self.upto)
        while upto is not None and upto >= from_seq:
            query = ReadThreadInput(
                session_id=self.handle.session_id,
                from_seq=from_seq,
                to_seq=upto,
                kind=kind,
                context_ref=context_ref,
                newest=PAGE_ENTRIES[kind],
            )
            page = await _read_page(self.handle, query)
            for row in reversed(page["entries"]):
                yield Entry.from_json(row)
            upto = page.get("next_seq")


async def _read_newest(handle: SessionHandle, query: ReadThreadInput) -> AsyncIterator[Entry]:
    """Read the last `query.newest` entries, the newest first."""
    remaining = query.newest or 1
    while True:
        page = await _read_page(handle, query)
        for row in reversed(page["entries"]):
            yield Entry.from_json(row)
        remaining -= len(page["entries"])
        if "next_seq" not in page or remaining == 0:
            return
        query = query.model_copy(update={"to_seq": page["next_seq"], "newest": remaining})


async def _read_page(handle: SessionHandle, query: ReadThreadInput) -> dict[str, Any]:
    return await handle.run_service(READ_WORKFLOW, query)
