"""Lists of archived sessions, and the search attributes by which Temporal lists those that run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json
from temporalio import activity

from clew.session.namespace import find_registered
from clew_activities.archive import Archive, ObjectDamaged
from clew_activities.archive.archive_errors import KeyMissing, translate_archive_errors
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract.errors import NewerVersion
from clew_workflows.contract.limits import MAX_PAGE_BYTES
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, ListSessionsInput, SessionsPage, SessionSummary, matches

log = logging.getLogger("clew.worker")

MAX_ROWS = 500
"""Most sessions of a page."""
MAX_SCANNED = 2_000
"""Most heads that are read for one page, so that a page of rare sessions takes bounded time."""
BATCH = 500
"""Heads whose names are listed at a time."""
READERS = 16
"""Heads that are read at the same time."""
FRESH_SECONDS = 30.0
"""Seconds for which the server's answer about its search attributes is used."""


class ListingActivities:
    """Lists sessions for clients, from the heads of their archives."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    @activity.defn(name="list_sessions")
    async def list_sessions(self, query: ListSessionsInput) -> dict[str, Any]:
        """List the sessions after `query.after`, in the order of their ids."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            page = await self._fill_page(query)
        return page.as_dict()

    async def _fill_page(self, query: ListSessionsInput) -> SessionsPage:
        rows: list[SessionSummary] = []
        after, room, scanned = query.after, MAX_PAGE_BYTES, 0
        while scanned < MAX_SCANNED:
            session_ids = await self._archive.list_sessions(after, BATCH, query.prefix or "")
            for summary in await self._read_summaries(session_ids):
                if summary and matches(summary, query):
                    room -= len(to_json(summary.as_dict())) + 1
                    if rows and (room < 0 or len(rows) == MAX_ROWS):
                        return SessionsPage(sessions=tuple(rows), next_after=after)
                    rows.append(summary)
                after = summary.session_id if summary else after
            if len(session_ids) < BATCH:
                return SessionsPage(sessions=tuple(rows))
            after, scanned = session_ids[-1], scanned + len(session_ids)
        return SessionsPage(sessions=tuple(rows), next_after=after)

    async def _read_summaries(self, session_ids: Sequence[str]) -> list[SessionSummary | None]:
        limit = asyncio.Semaphore(READERS)

        async def read(session_id: str) -> SessionSummary | None:
            async with limit:
                return await self._read_summary(session_id)

        return list(await asyncio.gather(*map(read, session_ids)))

    async def _read_summary(self, session_id: str) -> SessionSummary | None:
        """Read what lists show of a session; None: it has been deleted meanwhile.

        Of a head that this worker cannot read, only the id is known.
        """
        try:
            head = await self._archive.read_head(session_id)
        except (KeyMissing, NewerVersion, ObjectDamaged):
            return SessionSummary(session_id=session_id, archived=True)
        if head is None:
            return None
        summary = head.summary or SessionSummary(session_id=session_id)
        if head.status == "live":
            # A later workflow run has changed it since, or its workflow was terminated.
            return summary.model_copy(update={"status": "interrupted"})
        ended = summary.status if summary.status == "closed" else "hibernated"
        return summary.model_copy(update={"status": ended, "archived": True})


class SearchAttributes:
    """Finds out which search attributes the namespace of a worker has, and logs once which it lacks.

    Setting one that it lacks would block a session.
    """

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._known: tuple[str, ...] = ()
        self._fresh_until = 0.0
        self._warned = False

    async def list(self) -> tuple[str, ...]:
        """List the search attributes of sessions that the namespace has, for an activity.

        If the server does not say, the last answer is used.
        """
        async with self._asking:
            if time.monotonic() < self._fresh_until:
                return self._known
            asked_at, client = time.monotonic(), activity.client()
            try:
                registered = await find_registered(client)
            except Exception as error:
                # A session works without them: no failure of the server may keep it from starting.
                self._warn(f"the server does not say which search attributes it has: {error}")
                self._fresh_until = asked_at + FRESH_SECONDS
                return self._known
            self._fresh_until = asked_at + FRESH_SECONDS
            self._known = tuple(registered)
            if missing := [name for name in SEARCH_ATTRIBUTES if name not in registered]:
                self._warn(f"the namespace {client.namespace!r} lacks the search attributes {', '.join(missing)}")
            return self._known

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s. Lists of sessions show less and cannot be filtered: run `clew setup-namespace`", problem)
