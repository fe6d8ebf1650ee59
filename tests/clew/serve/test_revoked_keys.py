"""Keys that are taken out of the file while requests of theirs are being answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clew.serve import Key, Keys, ServeSettings, access, gate, make_app
from tests.clew.serve.test_mcp_sessions import PATH, open_session, ping
from tests.clew.serve.test_service_process import write_keys
from tests.support import web
from tests.support.openapi import check_answer
from tests.support.rolling import make_id
from tests.support.scripts import PausedModel
from tests.support.serving import make_http, make_key
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def run(stack: Stack, path: Path, *keys: Key) -> AsyncIterator[str]:
    """Run the service with keys of a file. Yields its address."""
    write_keys(path, *keys)
    application = make_app(Keys.load(path), clew=stack.clew, settings=ServeSettings())
    async with web.serve(application, stack.clew) as host:
        yield f"http://{host}"
        await application.state.mcp_sessions.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at again at once."""
    monkeypatch.setattr(access, "RELOAD_SECONDS", -1.0)
    monkeypatch.setattr(gate, "REVOKE_SECONDS", 0.02)


async def test_what_is_answered_to_a_revoked_key_ends(stack: Stack, tmp_path: Path) -> None:
    """Streams of each face, waits and MCP sessions; those of another key of the tenant go on."""
    tenant = make_id()
    (token, key), (other, kept) = make_key("leaked", tenant), make_key("kept", tenant)
    model = PausedModel()
    name = stack.add_model(model)
    async with (
        run(stack, tmp_path / "keys.toml", key, kept) as address,
        make_http(address, token) as http,
        make_http(address, other) as good,
    ):
        await http.put("/v1/sessions/chat", json={"model": name})
        waiting = asyncio.create_task(http.post("/v1/sessions/chat/messages?wait=60", json={"content": "hello"}))
        await model.called.wait()
        events = web.receive(http, "/v1/sessions/chat/events?from_seq=0")
        others = web.receive(good, "/v1/sessions/chat/events?from_seq=0")
        assert (await anext(events)).data == (await anext(others)).data
        session = await open_session(http)
        async with http.stream("GET", PATH, headers=session) as stream, asyncio.timeout(PATIENCE_SECONDS):
            write_keys(tmp_path / "keys.toml", kept)
            assert [event.data async for event in events][-1]["error"]["code"] == "unauthorized"
            answer = await waiting
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
            assert "unauthorized" in [line async for line in stream.aiter_lines() if line.startswith("data:")][-1]
        assert (await ping(http, session)).status_code == 401
        model.free.set()
        async for event in others:
            if event.data.get("entry", {}).get("kind") == "run":
                break
        assert (await good.get("/v1/sessions/chat")).status_code == 200


STREAMS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "Responses": ("POST", "/v1/responses", {"stream": True, "input": "hello"}),
    "Chat Completions": (
        "POST",
        "/v1/chat/completions",
        {"stream": True, "messages": [{"role": "user", "content": "hello"}]},
    ),
    "useChat": (
        "POST",
        "/v1/ui/chat",
        {"id": "ui", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}]},
    ),
    "AG-UI": (
        "POST",
        "/v1/ag-ui/run",
        {
            "threadId": "chat",
            "runId": "r",
            "state": {},
            "tools": [],
            "context": [],
            "forwardedProps": {},
            "messages": [{"id": "m", "role": "user", "content": "hello"}],
        },
    ),
}
"""The streams of the other faces: methods, paths and bodies."""


@pytest.mark.slow
@pytest.mark.parametrize("face", STREAMS)
async def test_a_stream_of_any_face_ends(stack: Stack, tmp_path: Path, face: str) -> None:
    """Its last event says that the key was revoked. What it has begun goes on."""
    token, key = make_key("leaked", make_id())
    _, kept = make_key("kept", make_id())
    model = PausedModel()
    name = stack.add_model(model)
    method, path, body = STREAMS[face]
    async with run(stack, tmp_path / "keys.toml", key, kept) as address, make_http(address, token) as http:
        await http.put("/v1/sessions/chat", json={"model": name})
        asked = body if face == "AG-UI" else {**body, "model": name}
        async with http.stream(method, path, json=asked, timeout=PATIENCE_SECONDS) as stream:
            assert stream.status_code == 200
            await model.called.wait()
            write_keys(tmp_path / "keys.toml", kept)
            async with asyncio.timeout(PATIENCE_SECONDS):
                lines = [line async for line in stream.aiter_lines() if line.startswith("data:")]
        assert "unauthorized" in lines[-1]
        model.free.set()


async def test_a_changed_row_ends_them_too(stack: Stack, tmp_path: Path) -> None:
    """They go on with what the new row permits, once the client connects again."""
    token, key = make_key("own", make_id())
    async with run(stack, tmp_path / "keys.toml", key) as address, make_http(address, token) as http:
        await http.put("/v1/sessions/chat", json={"model": stack.add_model(PausedModel())})
        events = web.receive(http, "/v1/sessions/chat/events?from_seq=0")
        await anext(events)
        write_keys(tmp_path / "keys.toml", key.model_copy(update={"agents": ("a",)}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            last = [event.data async for event in events][-1]
        assert last["error"]["code"] == "unauthorized"
        check_answer("GET", "/v1/sessions/chat/events", 200, last, "text/event-stream")
        assert (await http.get("/v1/sessions/chat")).status_code == 200
