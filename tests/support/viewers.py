"""Viewers of sessions, which collect the events that they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from clew import Session
from clew.contract.payloads import AssistantMessage
from clew.session.events import EntryCommitted, Restarted, SessionEvent, TextAdded
from clew.session.request import Request
from tests.support.waiting import PATIENCE_SECONDS

E = TypeVar("E")


class Viewer:
    """Follows until it is stopped, and keeps the events.

    Attributes:
        events: The events so far.
    """

    def __init__(self, following: AsyncGenerator[SessionEvent, None]) -> None:
        self.events: list[SessionEvent] = []
        self._following = following
        self._arrived = asyncio.Condition()
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for event in self._following:
            async with self._arrived:
                self.events.append(event)
                self._arrived.notify_all()

    async def wait_for(self, holds: Callable[[list[SessionEvent]], object]) -> None:
        """Wait until a condition of the events holds."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._arrived:
            while not holds(self.events):
                if self.task.done():
                    self.task.result()
                    raise AssertionError(f"the viewer has ended: {list_types(self.events)}")
                await self._arrived.wait()

    async def wait_for_seq(self, seq: int) -> None:
        """Wait for the entry of a seq."""
        await self.wait_for(lambda events: seq in list_seqs(events))

    async def stop(self) -> None:
        """Stop following."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def watch(session: Session, from_seq: int | None = 0) -> AsyncIterator[Viewer]:
    """Follow a session while the body runs."""
    viewer = Viewer(session.follow(from_seq))
    try:
        yield viewer
    finally:
        await viewer.stop()


async def collect(request: Request) -> list[SessionEvent]:
    """Collect the events of a request until its outcome."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [event async for event in request.events()]


def list_seqs(events: Iterable[SessionEvent]) -> list[int]:
    """List the seqs of the entries among events."""
    return [event.seq for event in events if isinstance(event, EntryCommitted)]


def list_types(events: Iterable[SessionEvent]) -> list[str]:
    """List the types of events."""
    return [event.type for event in events]


def select(events: Iterable[SessionEvent], kind: type[E]) -> list[E]:
    """Select the events of a type."""
    return [event for event in events if isinstance(event, kind)]


def check_events(events: Iterable[SessionEvent]) -> None:
    """Check what holds for every viewer: seqs without a gap, and texts that are the replies which follow them."""
    texts: dict[str, str] = {}
    expected: int | None = None
    for event in events:
        match event:
            case TextAdded():
                texts[event.call_id] = texts.get(event.call_id, "")[: event.offset] + event.text
            case Restarted():
                texts.pop(event.call_id, None)
            case EntryCommitted():
                assert expected in (None, event.seq), f"{event.seq} follows {expected}"
                expected = event.seq + 1
                if isinstance(reply := event.entry.body, AssistantMessage):
                    assert texts.pop(event.entry.refs["call_id"], "") == reply.content
