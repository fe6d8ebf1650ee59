"""The sessions of MCP clients of the protocols before 2026-07-28: their keys, their number, and their ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import httpx
import pytest

from clew.serve import ServeSettings
from clew.serve.mcp_server import SERVER
from clew.serve.mcp_sessions import McpSessions
from tests.support.rolling import make_id
from tests.support.serving import Served, make_http, make_key, run_service
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until

PATH = "/v1/mcp"
ACCEPT = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "test", "version": "1"},
}


def make_request(method: str, params: dict[str, Any] | None = None, *, id: int = 1) -> dict[str, Any]:  # noqa: A002
    """Make a request of JSON-RPC."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


async def begin(http: httpx.AsyncClient) -> httpx.Response:
    """Send the request that begins a session."""
    return await http.post(PATH, json=make_request("initialize", INITIALIZE), headers=ACCEPT)


async def open_session(http: httpx.AsyncClient) -> dict[str, str]:
    """Open a session. Returns the headers of its requests."""
    headers = {**ACCEPT, "Mcp-Session-Id": (await begin(http)).headers["Mcp-Session-Id"]}
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await http.post(PATH, json=initialized, headers=headers)).status_code == 202
    return headers


async def ping(http: httpx.AsyncClient, headers: dict[str, str]) -> httpx.Response:
    """Send a ping in a session."""
    return await http.post(PATH, json=make_request("ping"), headers=headers)


async def call(
    http: httpx.AsyncClient, headers: dict[str, str], message: str, session_id: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Call the tool `shop`. Yields the messages of the server."""
    params = {
        "name": "shop",
        "arguments": {"message": message, "session_id": session_id},
        "_meta": {"progressToken": "p"},
    }
    body = make_request("tools/call", params, id=7)
    async with http.stream("POST", PATH, json=body, headers=headers) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def wait_for_status(served: Served, session_id: str, status: str) -> None:
    """Wait until the newest request of a session has ended with a status."""
    session = served.app.state.clew.session(served.scope(session_id))

    async def has_ended() -> bool:
        return [entry.payload["status"] for entry in await session.entries(kind="run")] == [status]

    await wait_until(has_ended)


@pytest.fixture
async def served(stack: Stack) -> AsyncIterator[Served]:
    """The service, without agents."""
    async with run_service(stack.clew) as service:
        yield service


async def test_a_session_belongs_to_its_key(stack: Stack) -> None:
    """Neither another key of the tenant nor one of another tenant sends, reads or ends it."""
    token, other = make_key("other", "t-other")
    async with run_service(stack.clew, other) as served, make_http(served.address, token) as beside:
        headers = await open_session(served.http)
        for http in (served.stranger, beside):
            assert (await ping(http, headers)).status_code == 404
            assert (await http.get(PATH, headers=headers)).status_code == 404
            assert (await http.delete(PATH, headers=headers)).status_code == 404
        assert (await ping(served.http, headers)).status_code == 200
        assert (await served.http.delete(PATH, headers=headers)).status_code == 200
        await wait_until(lambda: len(served.app.state.mcp_sessions) == 0)
        ended = await ping(served.http, headers)
        assert (ended.status_code, ended.json()["error"]["code"]) == (404, "not_found")


async def test_a_new_session_takes_the_place_of_an_idle_one(stack: Stack) -> None:
    """A key has its share; while its sessions are in use, it gets no other one."""
    async with run_service(stack.clew, settings=ServeSettings(max_mcp_sessions=8)) as served:
        first, second = await open_session(served.http), await open_session(served.http)
        stranger = await open_session(served.stranger)
        assert (await ping(served.http, first)).status_code == 200
        await served.app.state.drain.wait_until_idle()
        third = await open_session(served.http)
        assert (await ping(served.http, second)).status_code == 404
        async with (
            served.http.stream("GET", PATH, headers=first) as one,
            served.http.stream("GET", PATH, headers=third) as two,
        ):
            assert (one.status_code, two.status_code) == (200, 200)
            refused = await begin(served.http)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")

        async def has_room() -> bool:
            return (await begin(served.http)).status_code == 200

        await wait_until(has_room)
        assert (await ping(served.stranger, stranger)).status_code == 200


async def test_a_process_has_so_many_sessions(stack: Stack) -> None:
    """The one that was idle for the longest time gives way, whichever key has opened it."""
    token, third = make_key("third", "t-third")
    settings = ServeSettings(max_mcp_sessions=2)
    async with run_service(stack.clew, third, settings=settings) as served, make_http(served.address, token) as http:
        first, second = await open_session(served.http), await open_session(served.stranger)
        await served.app.state.drain.wait_until_idle()
        newest = await open_session(http)
        assert (await ping(served.http, first)).status_code == 404
        assert (await ping(served.stranger, second)).status_code == 200
        assert (await ping(http, newest)).status_code == 200
        assert len(served.app.state.mcp_sessions) == 2


async def test_an_idle_session_ends(served: Served) -> None:
    """One whose stream is open does not."""
    sessions = McpSessions(SERVER, served.app.state.drain, 10, idle_seconds=0.5)
    served.app.state.mcp_sessions = sessions
    async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as streams:
        # On a busy machine a session may end before its stream begins.
        held, status = ACCEPT, 404
        while status == 404:
            held = {**ACCEPT, "Mcp-Session-Id": (await begin(served.http)).headers["Mcp-Session-Id"]}
            stream = await streams.enter_async_context(served.http.stream("GET", PATH, headers=held))
            status = stream.status_code
        idle = {**ACCEPT, "Mcp-Session-Id": (await begin(served.http)).headers["Mcp-Session-Id"]}
        await wait_until(lambda: len(sessions) == 1)
        assert (await ping(served.http, idle)).status_code == 404
        assert (await ping(served.http, held)).status_code == 200
    await wait_until(lambda: len(sessions) == 0)


async def test_what_begins_no_session(served: Served) -> None:
    """A refused beginning, and a request without a session, which is answered as far as it needs none."""
    refused = await served.http.post(
        PATH, json=make_request("initialize", INITIALIZE), headers={"Accept": "text/html"}
    )
    assert refused.status_code == 406
    answered = await served.http.post(PATH, json=make_request("tools/list"), headers=ACCEPT)
    assert (answered.status_code, "Mcp-Session-Id" in answered.headers) == (200, False)
    assert (await served.http.get(PATH, headers=ACCEPT)).status_code == 405
    unread = await served.http.post(
        PATH, content=b"[" * 10_000, headers={**ACCEPT, "Content-Type": "application/json"}
    )
    assert unread.status_code == 400
    await wait_until(lambda: len(served.app.state.mcp_sessions) == 0)


async def test_a_body_without_a_length_has_a_limit(stack: Stack) -> None:
    """It is refused when it exceeds the limit, before anything of MCP."""

    async def send() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 1000

    async with run_service(stack.clew, settings=ServeSettings(max_body_bytes=2000)) as served:
        refused = await served.http.post(PATH, content=send(), headers=ACCEPT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("max_mcp_sessions", [8, 0])
async def test_a_dropped_connection_cancels_the_request(stack: Stack, max_mcp_sessions: int) -> None:
    """A client that leaves while the model writes ends the run, with a session and without one."""
    session_id = make_id()
    async with run_shop(stack, "shop", settings=ServeSettings(max_mcp_sessions=max_mcp_sessions)) as served:
        headers = await open_session(served.http) if max_mcp_sessions else ACCEPT
        async with aclosing(call(served.http, headers, "long story", session_id)) as messages:
            assert (await anext(messages))["method"] == "notifications/progress"
        await wait_for_status(served, session_id, "cancelled")


async def test_a_client_that_ends_its_session_cancels_its_requests(stack: Stack) -> None:
    """The call ends with the session."""
    session_id = make_id()
    async with run_shop(stack, "shop") as served:
        headers = await open_session(served.http)
        async with aclosing(call(served.http, headers, "long story", session_id)) as messages:
            assert (await anext(messages))["method"] == "notifications/progress"
            assert (await served.http.delete(PATH, headers=headers)).status_code == 200
            await wait_for_status(served, session_id, "cancelled")
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert all("result" not in message for message in [message async for message in messages])


async def test_without_sessions_a_call_asks_nothing(stack: Stack) -> None:
    """A process that keeps none opens none, and tells a client of an earlier protocol how to decide."""
    async with run_shop(stack, "shop", settings=ServeSettings(max_mcp_sessions=0)) as served:
        assert "Mcp-Session-Id" not in (await begin(served.http)).headers
        headers = {**ACCEPT, "Mcp-Session-Id": "of-another-process", "Mcp-Protocol-Version": "2025-11-25"}
        last = [message async for message in call(served.http, headers, "guard", make_id())][-1]
        assert last["result"]["structuredContent"]["status"] == "awaiting_approval"


async def test_a_drain_ends_streams_and_questions(stack: Stack) -> None:
    """The call that waits for its client's user tells how to decide, and its request goes on."""
    session_id = make_id()
    async with run_shop(stack, "shop") as served:
        headers = await open_session(served.http)
        async with served.http.stream("GET", PATH, headers=headers) as stream:
            assert stream.status_code == 200
            messages = call(served.http, headers, "guard", session_id)
            async for message in messages:
                if message.get("method") == "elicitation/create":
                    break
            served.app.state.drain.begin()
            async with asyncio.timeout(PATIENCE_SECONDS):
                last = [message async for message in messages][-1]
                assert [line async for line in stream.aiter_lines() if line.startswith("data:")] == []
                await served.app.state.drain.wait_until_idle()
        assert last["result"]["structuredContent"]["status"] == "awaiting_approval"
        session = served.app.state.clew.session(served.scope(session_id))
        assert (await session.status()).status == "awaiting_approval"
