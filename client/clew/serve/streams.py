"""Server-sent events: one helper for every stream of the service.

A stream has a comment every 15 seconds, ends with a hint when the process drains, and stops reading its events when
the client leaves. It never cancels anything in the session.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from clew.serve.error_words import Reader
from clew.serve.problems import Draining, Internal, find_reader, make_body
from clew_workflows.contract.errors import ClewError

HEARTBEAT_SECONDS = 15.0
"""Seconds without an event after which a comment is sent: proxies close connections that are silent for a minute."""
FIRST_EVENT_SECONDS = 1.0
"""Seconds within which an error becomes the status of the response, and not an event of it."""
RECONNECT_MILLISECONDS = 500
"""Time after which a client connects again. At a drain it is up to four times as long, at random."""
STREAM_DRAIN_MESSAGE = "the process is about to end, and the request goes on: connect again"
SSE_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    # Proxies must pass each event on at once.
    "X-Accel-Buffering": "no",
}

log = logging.getLogger("clew.serve")
_LINE_END = re.compile(r"\r\n|\r|\n")


class EventStream(StreamingResponse):
    """A response that is a stream of server-sent events."""

    media_type = "text/event-stream"


def describe_stream(events: Any) -> dict[int | str, dict[str, Any]]:
    """Describe the stream of a route for its `responses`: the type of the JSON that is the data of its events."""
    return {200: {"model": events}}


@dataclass(frozen=True, slots=True)
class SentEvent:
    """A server-sent event.

    Attributes:
        data: The data. Its lines are sent as lines.
        id: What a client sends as `Last-Event-ID` when it connects again; None: it keeps the one before.
        event: The name of the event; None: `message`.
        retry: After how many milliseconds a client connects again; None: as before.
    """

    data: str
    id: str | None = None
    event: str | None = None
    retry: int | None = None

    def encode(self) -> bytes:
        """Encode the event."""
        fields = [("event", self.event), ("id", self.id), ("retry", self.retry)]
        lines = [f"{name}: {value}" for name, value in fields if value is not None]
        lines += [f"data: {line}" for line in _LINE_END.split(self.data)]
        return ("\n".join(lines) + "\n\n").encode(errors="replace")


class Drain:
    """Whether the process is about to end. Streams wait for it beside their events.

    It is announced first: the process is not ready any more, and takes what load balancers still send to it.

    Attributes:
        active: Requests that are being answered.
        is_announced: Whether the process is not ready any more.
    """

    def __init__(self) -> None:
        self.active, self.is_announced = 0, False
        self._begun, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def has_begun(self) -> bool:
        """Whether new requests are refused."""
        return self._begun.is_set()

    def announce(self) -> None:
        """Announce it: be not ready, and go on."""
        self.is_announced = True

    def begin(self) -> None:
        """Begin: end all streams, and refuse new requests."""
        self.announce()
        self._begun.set()

    async def wait(self) -> None:
        """Wait until it has begun."""
        await self._begun.wait()

    def count(self, change: int) -> None:
        """Count a request that begins or ends."""
        self.active += change
        if self.active:
            self._idle.clear()
        else:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()


async def stream_events(
    request: Request,
    events: AsyncGenerator[SentEvent | str, None],
    *,
    encode_error: Callable[[ClewError], Sequence[SentEvent]] | None = None,
    headers: Mapping[str, str] | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> StreamingResponse:
    """Make the response that sends events.

    Args:
        request: The request.
        events: The events. They are closed when the client leaves, and when the process drains. A text is an id with
            which a client goes on here, and is not sent.
        encode_error: Makes the last events of a stream that has failed after it has begun, or whose process drains
            (`Draining`): a client must not take what it has for the whole. None: the stream is the service's own. A
            client connects again with `Last-Event-ID`, for which the first event has a time. The last event is
            `error`, or of a draining process `draining` with the newest id.
        headers: Further headers.
        heartbeat_seconds: Seconds without an event after which a comment is sent.

    Raises:
        ClewError: The events have failed at once: it becomes the status of the response.
    """

    def encode_own_error(error: ClewError) -> Sequence[SentEvent]:
        if isinstance(error, Draining):
            retry = round((error.retry_seconds or 0) * 1000)
            return [SentEvent('{"type":"draining"}', reading.newest_id, "draining", retry)]
        return [make_error_event(error, find_reader(request))]

    drain: Drain = request.app.state.drain
    reading = _Reading(events, drain)
    await reading.look_ahead()
    retry = RECONNECT_MILLISECONDS if encode_error is None else None
    sent = _send(reading, encode_error or encode_own_error, heartbeat_seconds, retry)
    return _EventsResponse(reading, sent, {**SSE_HEADERS, **(headers or {})})


_Item = SentEvent | str | ClewError | None


class _Reading:
    """Reads events in a task of its own, one ahead of the client. None is the end, an error the last item.

    Attributes:
        newest_id: The newest id that was taken, of an event or alone; None: there was none.
    """

    def __init__(self, events: AsyncGenerator[SentEvent | str, None], drain: Drain) -> None:
        self.newest_id: str | None = None
        self._items: asyncio.Queue[_Item] = asyncio.Queue(1)
        self._task = asyncio.create_task(self._read(events))
        self._draining = asyncio.create_task(drain.wait())
        self._next: asyncio.Task[_Item] | None = None

    async def look_ahead(self) -> None:
        """Wait a moment for the first item.

        Raises:
            ClewError: It is an error.
        """
        try:
            done = await self._wait(FIRST_EVENT_SECONDS)
            if done and isinstance(error := done.result(), ClewError):
                raise error
        except BaseException:
            self.close()
            raise

    async def take(self, seconds: float) -> tuple[bool, _Item]:
        """Take the next item: whether there is one within the time, and the item."""
        done = await self._wait(seconds)
        if done is None:
            return False, None
        self._next = None
        item = done.result()
        if isinstance(item, SentEvent | str):
            self.newest_id = (item if isinstance(item, str) else item.id) or self.newest_id
        return True, item

    @property
    def drains(self) -> bool:
        """Whether the process drains."""
        return self._draining.done()

    def close(self) -> None:
        """Stop reading. Its tasks end on their own: a client that has left waits for nothing."""
        for task in (self._task, self._draining, self._next):
            if task is not None:
                task.cancel()

    async def _wait(self, seconds: float) -> asyncio.Task[_Item] | None:
        """Wait for the next item, and for the drain; None: it has not come."""
        if self._next is None:
            self._next = asyncio.create_task(self._items.get())
        await asyncio.wait({self._next, self._draining}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return self._next if self._next.done() else None

    async def _read(self, events: AsyncGenerator[SentEvent | str, None]) -> None:
        last: _Item = None
        try:
            async with aclosing(events):
                async for event in events:
                    await self._items.put(event)
        except ClewError as error:
            last = error
        except Exception as error:
            # The message may hold a text of the conversation.
            log.error("a stream has failed: %s", type(error).__name__)
            last = Internal("the service has failed")
        await self._items.put(last)


async def _send(
    reading: _Reading,
    encode_error: Callable[[ClewError], Sequence[SentEvent]],
    heartbeat_seconds: float,
    retry: int | None,
) -> AsyncGenerator[bytes, None]:
    """Send what is read, comments in between, and the error that ends it."""
    while True:
        has_come, item = await reading.take(heartbeat_seconds)
        if isinstance(item, SentEvent):
            # No block has a time alone: some clients take that for an event.
            yield replace(item, retry=retry).encode()
            retry = None
        elif isinstance(item, ClewError):
            for event in encode_error(item):
                yield event.encode()
            return
        elif has_come and item is None:
            return
        elif reading.drains:
            # Clients come again one after the other.
            later = random.randint(1, 4) * RECONNECT_MILLISECONDS / 1000
            for event in encode_error(Draining(STREAM_DRAIN_MESSAGE, retry_seconds=later)):
                yield event.encode()
            return
        elif not has_come:
            # A comment without an empty line ends no event: some clients would take the end for one.
            yield b": still here\n"


class _EventsResponse(EventStream):
    """Sends events, and stops reading them when the client has left, even before the first one."""

    def __init__(self, reading: _Reading, content: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(content, headers=headers)
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reading.close()


def make_json_event(document: Mapping[str, Any], *, id: str | None = None, event: str | None = None) -> SentEvent:  # noqa: A002
    """Make an event of a JSON object."""
    return SentEvent(json.dumps(document, ensure_ascii=False, separators=(",", ":")), id, event)


def make_error_event(error: ClewError, reader: Reader) -> SentEvent:
    """Make the last event of a stream of the service's own that has failed (`StreamFailed`)."""
    return make_json_event({"type": "error", **make_body(error, reader)}, event="error")
