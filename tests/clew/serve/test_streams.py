"""Server-sent events: their form, heartbeats, errors, the drain, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import Request
from fastapi.responses import StreamingResponse

from clew.serve.streams import Drain, SentEvent, make_json_event, stream_events
from clew_workflows.contract.errors import Busy, ClewError, NotFound, find_word
from tests.support.serving import Served, run_service
from tests.support.waiting import wait_until


@dataclass
class Source:
    """Events that a test sends one by one.

    Attributes:
        queue: What is sent next: an event, an error, or None for the end.
        closed: Whether the events were closed.
    """

    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> AsyncGenerator[SentEvent, None]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed.set()


@pytest.fixture
async def source() -> Source:
    return Source()


@pytest.fixture
async def served(source: Source) -> AsyncIterator[Served]:
    async with run_service(object()) as running:  # type: ignore[arg-type]

        @running.app.get("/stream")
        async def stream(request: Request) -> StreamingResponse:
            return await stream_events(request, source.read(), heartbeat_seconds=0.05)

        @running.app.get("/plain")
        async def stream_plainly(request: Request) -> StreamingResponse:
            def encode_error(error: ClewError) -> list[SentEvent]:
                return [SentEvent(f"failed: {find_word(error)}"), SentEvent("over")]

            return await stream_events(request, source.read(), encode_error=encode_error, heartbeat_seconds=0.05)

        yield running


async def read_all(http: httpx.AsyncClient, path: str) -> str:
    return (await http.get(path)).text


@pytest.mark.parametrize(
    ("event", "encoded"),
    [
        (SentEvent("a"), "data: a\n\n"),
        (SentEvent("a\nb\r\nc\rd", id="3", event="e"), "event: e\nid: 3\ndata: a\ndata: b\ndata: c\ndata: d\n\n"),
        (make_json_event({"text": "é\n"}), 'data: {"text":"é\\n"}\n\n'),
        (SentEvent("\ud800"), "data: ?\n\n"),
    ],
)
def test_an_event_is_encoded(event: SentEvent, encoded: str) -> None:
    """No data of an event can be taken for a field or another event."""
    assert event.encode().decode() == encoded


async def test_events_heartbeats_and_the_end(served: Served, source: Source) -> None:
    """The first event has the time of a reconnection; comments fill the silence; the end closes the source."""
    source.queue.put_nowait(make_json_event({"n": 1}, id="1"))
    async with served.http.stream("GET", "/stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-store"
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if text.count(": still here") == 2:
                source.queue.put_nowait(make_json_event({"n": 2}, id="2"))
                source.queue.put_nowait(None)
    assert text.startswith('id: 1\nretry: 500\ndata: {"n":1}\n\n: still here\n')
    assert text.endswith('id: 2\ndata: {"n":2}\n\n')
    assert source.closed.is_set()


async def test_heartbeats_are_no_events(served: Served, source: Source) -> None:
    """A client gets none of them, also one that keeps the id of the event before."""
    source.queue.put_nowait(make_json_event({"n": 1}, id="1"))
    seen = []
    async for event in served.receive("/stream"):
        seen.append(event.data)
        if len(seen) == 1:
            asyncio.get_running_loop().call_later(0.3, source.queue.put_nowait, make_json_event({"n": 2}))
            asyncio.get_running_loop().call_later(0.3, source.queue.put_nowait, None)
    assert seen == [{"n": 1}, {"n": 2}]


async def test_an_error_at_once_is_the_status(served: Served, source: Source) -> None:
    """A stream that cannot begin is answered as any request."""
    source.queue.put_nowait(NotFound("no"))
    answer = await served.http.get("/stream")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_later_error_is_the_last_event(served: Served, source: Source) -> None:
    """With the contract's word; an unexpected one has no details."""
    for error, code in ((Busy("no"), "busy"), (RuntimeError("secret"), "internal")):
        source.queue.put_nowait(SentEvent("{}"))
        source.queue.put_nowait(error)
        text = await read_all(served.http, "/stream")
        name, data = text.rstrip().splitlines()[-2:]
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == code
        assert "secret" not in text


async def test_a_client_that_leaves_ends_the_reading(served: Served, source: Source) -> None:
    """The source is closed, although it has nothing to send."""
    source.queue.put_nowait(SentEvent("{}"))
    async with served.http.stream("GET", "/stream") as answer:
        await anext(answer.aiter_text())
    async with asyncio.timeout(10):
        await source.closed.wait()
    drain: Drain = served.app.state.drain
    await wait_until(lambda: drain.active == 0)


async def test_a_drain_ends_streams(served: Served, source: Source) -> None:
    """Clients of the service's own streams get a time and the newest id; others get an error of their protocol."""
    own = "event: draining\nid: 7\nretry: "
    for path, last in (("/stream", own), ("/plain", "data: failed: draining\n\ndata: over")):
        source.queue.put_nowait("5")
        source.queue.put_nowait(SentEvent("{}", id="7"))
        source.queue.put_nowait(SentEvent("{}"))
        drain = served.app.state.drain = Drain()
        async with served.http.stream("GET", path) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                drain.begin()
        text = text.replace(": still here\n", "")
        assert text[text.rindex("data: {}\n\n") :].removeprefix("data: {}\n\n").startswith(last)
        assert ("retry" in text) is (path == "/stream")
        assert drain.active == 0


async def test_a_drain_before_the_first_id_tells_where_the_stream_began(served: Served, source: Source) -> None:
    """A client that comes again with it misses nothing that has happened meanwhile."""
    source.queue.put_nowait("5")
    source.queue.put_nowait(SentEvent("{}"))
    async with served.http.stream("GET", "/stream") as answer:
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            served.app.state.drain.begin()
    assert "event: draining\nid: 5\n" in text
