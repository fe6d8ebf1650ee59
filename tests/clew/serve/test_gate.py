"""The gate that each request passes: the drain, turns, bodies, the access log and the metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from clew.errors import InvalidInput
from clew.local.child import LOOPBACK, free_ports
from clew.serve import Keys, ServeSettings, gate, make_app
from clew.serve.access import Authorized
from clew.serve.bodies import read_body
from clew.serve.gate import find_body_limit
from clew.serve.service_process import make_runtime
from clew.serve.streams import SentEvent, stream_events
from tests.clew.serve.test_application import KEY, OTHER_TOKEN, SETTINGS, TOKEN, make_client
from tests.support import web
from tests.support.scraping import Scrape
from tests.support.waiting import wait_until


class Values(BaseModel):
    values: list[int]


def begin_drain(http: httpx.AsyncClient) -> None:
    transport: Any = http._transport
    transport.app.state.drain.begin()


async def test_a_body_without_a_length_is_limited() -> None:
    """A body that comes in pieces is refused with 413 once it is larger than its path takes."""

    async def send(pieces: int) -> httpx.Response:
        async def make() -> AsyncIterator[bytes]:
            for _ in range(pieces):
                yield b"x" * 100

        return await http.post("/count", content=make())

    async with make_client() as http:
        assert (await send(10)).json() == 1000
        refused = await send(11)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")


async def test_an_unexpected_error_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is 500 without details; the log has where it happened, and not the error's message."""
    async with make_client() as http:
        with caplog.at_level(logging.INFO, "clew.serve"):
            failed = await http.get("/broken")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in failed.text
    lines = [f"{record.getMessage()} {getattr(record, 'fields', '')}" for record in caplog.records]
    assert any("RuntimeError" in line and "test_application.py" in line for line in lines)
    assert not any("secret" in line for line in lines)


async def test_the_access_log_has_no_contents(caplog: pytest.LogCaptureFixture) -> None:
    """A line has the route, the status and the names of key and tenant: no id, no query, no text, no key."""
    async with make_client() as http:
        with caplog.at_level(logging.INFO, "clew.serve"):
            await http.post("/echo?q=hidden", json={"text": "hidden"})
    (record,) = [record for record in caplog.records if record.name == "clew.serve.access"]
    fields = record.fields  # type: ignore[attr-defined]
    assert fields.keys() == {"id", "method", "route", "status", "seconds", "key", "tenant"}
    assert (fields["route"], fields["status"], fields["key"], fields["tenant"]) == ("/echo", 200, "own", "acme")
    assert "hidden" not in repr(record.__dict__)
    assert TOKEN not in repr(record.__dict__)


async def test_a_draining_process_refuses_requests() -> None:
    """It answers 503 with `Retry-After`, is not ready, and lives."""
    async with make_client() as http:
        begin_drain(http)
        refused = await http.post("/echo", json={"text": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["Retry-After"] == "1"
        assert (await http.get("/health/live")).status_code == 200
        assert (await http.get("/health/ready")).status_code == 503


def test_paths_with_files_take_larger_bodies() -> None:
    """A blob, and a path that takes media in base64, have limits of their own."""
    settings = ServeSettings()
    assert find_body_limit("/v1/sessions/a/blobs", settings) == settings.max_blob_bytes
    assert find_body_limit("/v1/responses", settings) == settings.max_media_body_bytes
    assert find_body_limit("/v1/sessions/a/blobs/b/messages", settings) == settings.max_body_bytes


async def test_a_client_that_leaves_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """It leaves while it sends its body: the log has 499, and no error."""
    app = make_app(Keys([KEY]), clew=object(), settings=SETTINGS)  # type: ignore[arg-type]

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/sessions",
        "query_string": b"",
        "headers": headers,
    }
    with caplog.at_level(logging.INFO, "clew.serve"):
        await app(scope, receive, send)
    (record,) = [record for record in caplog.records if record.name == "clew.serve.access"]
    assert record.fields["status"] == 499  # type: ignore[attr-defined]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not sent


async def test_metrics_have_the_route_and_no_ids() -> None:
    """Prometheus reads the time of requests by method, route, status and key; a path that is not served has none."""
    (port,) = free_ports(1)
    runtime = make_runtime(f"{LOOPBACK}:{port}")
    app = make_app(Keys([KEY]), clew=object(), settings=SETTINGS, meter=runtime.metric_meter)  # type: ignore[arg-type]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=headers) as http:
        assert (await http.put("/v1/sessions/secret", json={"sort": 1})).status_code == 400
        assert (await http.get("/secret")).status_code == 404
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://{LOOPBACK}:{port}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("clew_serve_request_seconds_count")]
    assert any('route="/v1/sessions/{session_id}"' in line and 'status="400"' in line for line in lines)
    assert any('route="none"' in line and 'status="404"' in line for line in lines)
    assert "clew_serve_active_requests" in text
    assert "secret" not in text
    with pytest.raises(InvalidInput):
        make_runtime(f"{LOOPBACK}:{port}")


async def test_open_streams_are_counted() -> None:
    """Prometheus reads how many streams the process has, for an autoscaler: other requests are none."""
    (port,) = free_ports(1)
    runtime = make_runtime(f"{LOOPBACK}:{port}")
    app = make_app(Keys([KEY]), clew=object(), settings=SETTINGS, meter=runtime.metric_meter)  # type: ignore[arg-type]

    @app.get("/stream")
    async def stream(request: Request) -> StreamingResponse:
        async def make() -> AsyncGenerator[SentEvent, None]:
            yield SentEvent("{}")
            await asyncio.Event().wait()

        return await stream_events(request, make())

    async with web.serve(app) as host, httpx.AsyncClient(base_url=f"http://{host}") as http:

        async def count() -> float:
            return Scrape((await http.get(f"http://{LOOPBACK}:{port}/metrics")).text).sum("clew_serve_open_streams")

        async def has_none() -> bool:
            return await count() == 0

        assert (await http.get("/health/live")).status_code == 200
        assert await count() == 0
        async with http.stream("GET", "/stream") as one, http.stream("GET", "/stream") as two:
            # An iterator that nobody holds is closed, and its stream with it.
            texts = one.aiter_text(), two.aiter_text()
            for text in texts:
                await anext(text)
            assert await count() == 2
        await wait_until(has_none)


async def test_a_request_of_another_key_begins_between_those_of_a_burst() -> None:
    """One of each key begins in a turn of the event loop, however many a key has sent."""
    order: list[str] = []

    async def send(http: httpx.AsyncClient, text: str, token: str) -> None:
        answer = await http.post("/echo", json={"text": text}, headers={"Authorization": f"Bearer {token}"})
        order.append(answer.json()["text"])

    async with make_client() as http:
        burst = [send(http, "burst", TOKEN) for _ in range(100)]
        await asyncio.gather(*burst, send(http, "other", OTHER_TOKEN))
    assert len(order) == 101
    assert order.index("other") < 10


async def test_bodies_of_many_values_wait_for_the_share_of_their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come to its turn in time is refused with 429; another key has a share of its own."""
    monkeypatch.setattr(gate, "MAX_KEY_VALUES", 2_000)
    monkeypatch.setattr(gate, "SHARE_SECONDS", 0.05)
    reached, released = asyncio.Event(), asyncio.Event()
    async with make_client(ServeSettings()) as http:
        app: FastAPI = http._transport.app  # type: ignore[attr-defined]

        @app.post("/hold")
        async def hold(caller: Authorized, body: Annotated[Values, read_body(Values)]) -> str:
            reached.set()
            await released.wait()
            return "held"

        async def send(token: str) -> httpx.Response:
            body = {"values": [1] * 1_500}
            return await http.post("/hold", json=body, headers={"Authorization": f"Bearer {token}"})

        first = asyncio.create_task(send(TOKEN))
        await reached.wait()
        refused = await send(TOKEN)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "2")
        reached.clear()
        other = asyncio.create_task(send(OTHER_TOKEN))
        await reached.wait()
        released.set()
        assert [answer.json() for answer in await asyncio.gather(first, other)] == ["held"] * 2
