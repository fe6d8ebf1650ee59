"""The activity of the workflow `ReadThread`: one page of a thread, archived and live as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from temporalio import activity

from clew.contract import MAX_PAGE_BYTES, ReadThreadInput
from clew.thread.entries import Entry
from clew.thread.source import make_filter
from clew_activities.archive import Archive
from clew_activities.archive_activities import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.thread_source import Threads

MAX_SCANNED = 50_000
"""Entries that one page looks at: what is rare is found within several pages, each in bounded time."""


class ReadingActivities:
    """Reads threads for clients."""

    def __init__(self, archive: Archive) -> None:
        self._threads = Threads(archive)

    @activity.defn(name="read_thread")
    async def read_thread(self, asked: ReadThreadInput) -> dict[str, Any]:
        """One page of a thread, and where the next one begins; with `newest`, where it ends."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            location = await self._threads.find(asked.session_id)
            if asked.newest is None:
                page = await _page(self._threads.read_forward(location, asked, asked.to_seq), asked, asked.limit)
                return page.as_json()
            page = await _page(
                self._threads.read_backward(location, asked, asked.to_seq), asked, asked.newest, step=-1
            )
            page.rows.reverse()
            return page.as_json()


@dataclass(slots=True)
class _Page:
    rows: list[dict[str, Any]]
    next_seq: int | None = None

    def as_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"entries": self.rows}
        return answer if self.next_seq is None else answer | {"next_seq": self.next_seq}


async def _page(found: AsyncIterator[Entry], asked: ReadThreadInput, limit: int | None, step: int = 1) -> _Page:
    """As many entries as a page holds, read in one direction."""
    meets, room, scanned = make_filter(asked), MAX_PAGE_BYTES, 0
    page = _Page([])
    following: int | None = None
    async for entry in found:
        if meets(entry):
            row = entry.as_json()
            room -= len(to_json(row)) + 1
            if page.rows and room < 0:
                following = entry.seq
                break
            page.rows.append(row)
        scanned += 1
        if len(page.rows) == limit or scanned == MAX_SCANNED:
            following = entry.seq + step
            break
    if following is not None and asked.from_seq <= following and (asked.to_seq is None or following <= asked.to_seq):
        page.next_seq = following
    return page
