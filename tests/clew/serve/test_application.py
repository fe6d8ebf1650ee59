"""The application: keys, errors, and what other origins may read."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel
from temporalio.service import RPCError, RPCStatusCode

from clew.errors import Busy
from clew.serve import Keys, ServeSettings, make_app
from clew.serve.access import Authorized
from clew.serve.application import Readiness
from clew.serve.bodies import read_body
from clew.serve.streams import Drain
from tests.support.serving import make_key
from tests.support.waiting import wait_until

TOKEN, KEY = make_key("own", "acme", requests_per_minute=1000)
OTHER_TOKEN, OTHER_KEY = make_key("other", "else", requests_per_minute=1000)
SETTINGS = ServeSettings(max_body_bytes=1000, cors_origins=("https://app.example",))


class Body(BaseModel):
    text: str


def make_client(settings: ServeSettings = SETTINGS) -> httpx.AsyncClient:
    """Make a client of an application with a few routes, which needs no server."""
    app = make_app(Keys([KEY, OTHER_KEY]), clew=object(), settings=settings)  # type: ignore[arg-type]

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


async def test_cors_is_off_unless_an_origin_is_named() -> None:
    """Only a named origin may read answers, errors included."""
    ask = {"Origin": "https://app.example"}
    async with make_client() as http:
        assert (await http.get("/busy", headers=ask)).headers["Access-Control-Allow-Origin"] == ask["Origin"]
        other = await http.get("/busy", headers={"Origin": "https://other.example"})
        assert "Access-Control-Allow-Origin" not in other.headers
    async with make_client(ServeSettings()) as http:
        assert "Access-Control-Allow-Origin" not in (await http.get("/busy", headers=ask)).headers


async def test_unknown_routes_have_the_same_errors() -> None:
    """A path or a method that is not served is told in the form of all errors."""
    async with make_client() as http:
        missing, wrong = await http.get("/nothing"), await http.delete("/echo")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


@dataclass
class FakeServer:
    """A Temporal server, as a probe sees it.

    Attributes:
        is_up: Whether it answers.
    """

    is_up: bool = True

    @property
    def temporal(self) -> FakeServer:
        return self

    @property
    def service_client(self) -> FakeServer:
        return self

    async def check_health(self, **_options: timedelta) -> bool:
        if not self.is_up:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        return True


async def test_a_short_absence_of_the_server_leaves_the_process_ready() -> None:
    """A process is ready once the Temporal server has answered, until it is away for half a minute, or it drains."""
    server, drain, now = FakeServer(is_up=False), Drain(), 100.0
    readiness = Readiness(drain, lambda: now)

    async def is_ready() -> bool:
        return await readiness.find_problem(server) is None  # type: ignore[arg-type]

    assert not await is_ready()
    server.is_up = True
    assert await is_ready()
    server.is_up = False
    now += 29
    assert await is_ready()
    now += 2
    assert not await is_ready()
    server.is_up = True
    assert await is_ready()
    drain.announce()
    assert not await is_ready()


async def test_an_application_that_is_over_leaves_the_memory() -> None:
    """A process that makes one application after another holds none of those before."""

    async def use_one() -> weakref.ref[FastAPI]:
        app = make_app(Keys([KEY]), settings=SETTINGS)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            paths = "/docs", "/openapi.json", "/health/live", "/v1/sessions"
            assert [(await http.get(path)).status_code for path in paths] == [200, 200, 200, 401]
        return weakref.ref(app)

    used = [await use_one() for _ in range(2)]

    def have_left() -> bool:
        gc.collect()
        return not any(reference() for reference in used)

    await wait_until(have_left)
