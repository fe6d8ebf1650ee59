"""Follow a session, or one of its requests: the events of one viewer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from clew.session.events.feed import CLOSED, Feed
from clew.session.events.hub import Hub, get_hub
from clew.session.events.types import EntryCommitted, SessionEvent
from clew.session.handle import SessionHandle
from clew.session.reading import read_entries
from clew_workflows.contract import EntriesQuery, FollowQuery
from clew_workflows.contract.errors import Closed, NotFound, UnknownRequest
from clew_workflows.contract.outputs import LiveStatus
from clew_workflows.contract.payloads import UserMessage


async def follow_session(handle: SessionHandle, from_seq: int | None) -> AsyncGenerator[SessionEvent, None]:
    """Yield a session's events from a seq on; None: from the next entry on. Ends after the session was closed."""
    hub = get_hub(handle)
    with hub.join():
        async with aclosing(_view(hub, from_seq)) as events:
            async for event in events:
                yield event


async def follow_request(handle: SessionHandle, request_id: str) -> AsyncGenerator[SessionEvent, None]:
    """Yield the events of a request, from its first entry to its outcome.

    Raises:
        UnknownRequest: The session knows no request with this id.
    """
    hub = get_hub(handle)
    selection = _RequestEvents(request_id)
    with hub.join():
        from_seq = await hub.share(("request", request_id), lambda: _find_start(handle, request_id))
        async with aclosing(_view(hub, from_seq)) as events:
            async for event in events:
                if selection.includes(event):
                    yield event
                if selection.is_outcome(event):
                    return


async def _view(hub: Hub, from_seq: int | None) -> AsyncGenerator[SessionEvent, None]:
    snapshot = await hub.wait_for_snapshot()
    feed = Feed(snapshot.next_seq if from_seq is None else from_seq)
    while True:
        while feed.next_seq < (snapshot := hub.snapshot).next_seq:
            for entry in await hub.read_block(feed.next_seq):
                for event in feed.take_entry(entry):
                    yield event
        for event in feed.take_snapshot(snapshot):
            yield event
        if snapshot.ended == CLOSED:
            return
        await hub.wait_for_snapshot(snapshot)


class _RequestEvents:
    """Selects the events of one request: its own, and those of the run that serves it."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._run_ids: set[str] = set()

    def includes(self, event: SessionEvent) -> bool:
        """Whether an event belongs to the request."""
        is_own = event.request_id == self._request_id
        if isinstance(event, EntryCommitted):
            if is_own and event.run_id:
                self._run_ids.add(event.run_id)
            if event.entry.kind == "run":
                return is_own
        return is_own or event.run_id in self._run_ids

    def is_outcome(self, event: SessionEvent) -> bool:
        """Whether an event is the entry with the request's outcome."""
        return (
            isinstance(event, EntryCommitted) and event.entry.kind == "run" and event.request_id == self._request_id
        )


async def _find_start(handle: SessionHandle, request_id: str) -> int:
    """Find the seq of a request's first entry; for a request without one, the seq of the next entry."""
    query = EntriesQuery(request_id=request_id, limit=1)
    try:
        status = LiveStatus.model_validate((await handle.query("follow", FollowQuery(), only_open=True))["status"])
        page = await handle.query_entries(query, only_open=True)
    except (Closed, NotFound):
        page = status = None
    if page and page.rows and (page.first_live_seq == 0 or isinstance(page.rows[0].body, UserMessage)):
        return page.rows[0].seq
    if page and not page.rows and status and request_id in status.unfinished_request_ids:
        return status.rev
    async for entry in read_entries(handle, query):
        return entry.seq
    raise UnknownRequest(f"session {handle.session_id!r} knows no request {request_id!r}")
