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
from clew_activities.error_translation import translate_archive_errors
from clew_activities.heartbeat import send_heartbeats
from clew_activities.thread_source import Threads

MAX_SCANNED = 50_000
"""Most entries that are scanned for one page, so that a page of rare entries takes bounded time."""


class ReadingActivities:
    """Reads threads for clients."""

    def __init__(self, archive: Archive) -> None:
        self._threads = Threads(archive)

    @activity.defn(name="read_thread")
    async def read_thread(self, query: ReadThreadInput) -> dict[str, Any]:
        """Read one page of a thread. `next_seq` says where the next page begins or, with `newest`, ends."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            location = await self._threads.find(query.session_id)
            if query.newest is None:
                page = await _fill_page(self._threads.read_forward(location, query, query.to_seq), query, query.limit)
                return page.as_dict()
            page = await _fill_page(
                self._threads.read_backward(location, query, query.to_seq), query, query.newest, step=-1
            )
            page.rows.reverse()
            return page.as_dict()


@dataclass(slots=True)
class _Page:
    rows: list[dict[str, Any]]
    next_seq: int | None = None

    def as_dict(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"entries": self.rows}
        return answer if self.next_seq is None else answer | {"next_seq": self.next_seq}


async def _fill_page(
    entries: AsyncIterator[Entry], query: ReadThreadInput, limit: int | None, step: int = 1
) -> _Page:
    """Fill a page with entries, read in one direction."""
    matches, room, scanned = make_filter(query), MAX_PAGE_BYTES, 0
    page = _Page([])
    following: int | None = None
    async for entry in entries:
        if matches(entry):
            row = entry.as_dict()
            room -= len(to_json(row)) + 1
            if page.rows and room < 0:
                following = entry.seq
                break
            page.rows.append(row)
        scanned += 1
        if len(page.rows) == limit or scanned == MAX_SCANNED:
            following = entry.seq + step
            break
    if following is not None and query.from_seq <= following and (query.to_seq is None or following <= query.to_seq):
        page.next_seq = following
    return page
