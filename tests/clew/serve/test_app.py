"""The gate that each request passes, health, and the end of the process."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Request
from pydantic import BaseModel

from clew.errors import Busy, InvalidInput
from clew.local.child import LOOPBACK, free_ports
from clew.serve import Keys, ServeSettings, make_app
from clew.serve.access import Authorized
from clew.serve.app import find_body_limit
from clew.serve.bodies import read_body
from clew.serve.running import make_runtime
from tests.support.serving import make_key

TOKEN, KEY = make_key("own", "acme", requests_per_minute=1000)
SETTINGS = ServeSettings(max_body_bytes=1000, cors_origins=("https://app.example",))


class Body(BaseModel):
    text: str


def make_client(settings: ServeSettings = SETTINGS) -> httpx.AsyncClient:
    """Make a client of an application with a few routes, which needs no server."""
    app = make_app(Keys([KEY]), clew=object(), settings=settings)  # type: ignore[arg-type]

    @app.post("/echo")
    async def echo(caller: Authorized, body: Annotated[Body, read_body(Body)]) -> dict[str, str]:
        return {"tenant": caller.tenant, "text": body.text}

    @app.post("/count")
    async def count(request: Request) -> int:
        return len(await request.body())

    @app.get("/busy")
    async def refuse(caller: Authorized) -> None:
        raise Busy(f"session '{caller.scope('chat')}' is busy")

    @app.get("/broken")
    async def fail() -> None:
        raise RuntimeError("a secret text")

    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(
        transport=transport, base_url="http://test", headers={"Authorization": f"Bearer {TOKEN}"}
    )


def begin_drain(http: httpx.AsyncClient) -> None:
    transport: Any = http._transport
    transport.app.state.drain.begin()


async def test_a_request_needs_a_known_key() -> None:
    """Without a key, or with another one, a request is refused with 401 and says how to authenticate."""
    async with make_client() as http:
        assert (await http.post("/echo", json={"text": "hi"})).json() == {"tenant": "acme", "text": "hi"}
        for header in (
            {"Authorization": ""},
            {"Authorization": "Bearer clew_wrong"},
            {"Authorization": f"Basic {TOKEN}"},
        ):
            refused = await http.post("/echo", json={"text": "hi"}, headers=header)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert TOKEN not in refused.text


async def test_an_error_names_the_session_as_its_caller_does() -> None:
    """A refusal has the contract's word, a status, and no tenant in its message."""
    async with make_client() as http:
        refused = await http.get("/busy")
        assert refused.status_code == 409
        assert refused.json() == {
            "error": {"type": "busy", "message": "session 'chat' is busy", "param": None, "code": "busy"}
        }


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", 400),
        (b'{"text": 3}', 400),
        (b'{"text": NaN}', 400),
        (b"[" * 900, 400),
        (b'{"text": "\xff"}', 400),
        (b'{"text": "\\ud800"}', 400),
        (b"x" * 1001, 413),
    ],
)
async def test_hostile_bodies_are_refused(content: bytes, code: int) -> None:
    """A body that is not valid is a caller's error, and never one of the service."""
    async with make_client() as http:
        refused = await http.post("/echo", content=content, headers={"Content-Type": "application/json"})
        assert refused.status_code == code
        assert refused.json()["error"]["code"]


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
    assert any("RuntimeError" in line and "test_app.py" in line for line in lines)
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


async def test_cors_is_off_unless_an_origin_is_named() -> None:
    """Only a named origin may read answers, errors included."""
    ask = {"Origin": "https://app.example"}
    async with make_client() as http:
        assert (await http.get("/busy", headers=ask)).headers["Access-Control-Allow-Origin"] == ask["Origin"]
        other = await http.get("/busy", headers={"Origin": "https://other.example"})
        assert "Access-Control-Allow-Origin" not in other.headers
    async with make_client(ServeSettings()) as http:
        assert "Access-Control-Allow-Origin" not in (await http.get("/busy", headers=ask)).headers


def test_settings_of_the_environment() -> None:
    """A number of MCP sessions that is none is refused by its name."""
    environ = {"CLEW_SERVE_MCP_SESSIONS": "0", "CLEW_SERVE_CORS_ORIGINS": "https://a.example, https://b.example"}
    settings = ServeSettings.from_environ(environ)
    assert (settings.max_mcp_sessions, settings.cors_origins) == (0, ("https://a.example", "https://b.example"))
    assert ServeSettings.from_environ({}) == ServeSettings()
    for name, value in (("CLEW_SERVE_MCP_SESSIONS", "many"), ("CLEW_SERVE_CORS_ORIGINS", "*")):
        with pytest.raises(InvalidInput, match=name):
            ServeSettings.from_environ({name: value})


async def test_a_draining_process_refuses_requests() -> None:
    """It answers 503 with `Retry-After`, is not ready, and lives."""
    async with make_client() as http:
        begin_drain(http)
        refused = await http.post("/echo", json={"text": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["Retry-After"] == "1"
        assert (await http.get("/health/live")).status_code == 200
        assert (await http.get("/health/ready")).status_code == 503


async def test_unknown_routes_have_the_same_errors() -> None:
    """A path or a method that is not served is told in the form of all errors."""
    async with make_client() as http:
        missing, wrong = await http.get("/nothing"), await http.delete("/echo")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


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
