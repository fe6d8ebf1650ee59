"""The MCP server with the official client, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from clew.serve.mcp_server import make_tools
from tests.support.rolling import make_id
from tests.support.serving import Served
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until

EARLIER = "legacy"
"""How a client speaks the versions of the protocol before 2026-07-28."""


@pytest.fixture
async def served(stack: Stack) -> AsyncIterator[Served]:
    """The service with a key of a tenant that may use the agents `shop` and `back.office`."""
    async with run_shop(stack, "shop", "back.office") as service:
        yield service


@asynccontextmanager
async def connect(served: Served, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """Connect the official client to the service."""
    headers = {"Authorization": f"Bearer {token or served.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS) as http:
        transport = streamable_http_client(f"{served.address}/v1/mcp", http_client=http)
        async with Client(transport, **options) as client:
            yield client


def test_a_key_without_agents_names_one() -> None:
    """Its only tool takes the agent; the tools of other keys are their agents."""
    (tool,) = make_tools(None)
    assert "agent" in tool.input_schema["properties"]
    assert [tool.name for tool in make_tools(["a", "b.c"])] == ["a", "b_c"]


@pytest.mark.parametrize("mode", ["auto", EARLIER])
async def test_an_agent_is_a_tool(served: Served, mode: Any) -> None:
    """Its result is structured, and names the session, which the next call continues."""
    async with connect(served, mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["shop", "back_office"]
        first = await client.call_tool("back_office", {"message": "hello"})
        assert (first.is_error, first.structured_content["status"]) == (False, "completed")
        assert first.structured_content["answer"] == "You said hello"
        session_id = first.structured_content["session_id"]
        second = await client.call_tool("back_office", {"message": "again", "session_id": session_id})
        assert second.structured_content["session_id"] == session_id
        listed = {f"clew://sessions/{session_id}"}

        async def is_listed() -> bool:
            return {str(resource.uri) for resource in (await client.list_resources()).resources} == listed

        await wait_until(is_listed)
        (contents,) = (await client.read_resource(f"clew://sessions/{session_id}")).contents
        assert isinstance(contents, types.TextResourceContents)
        texts = [
            part["text"]
            for message in json.loads(contents.text)["messages"]
            for part in message["parts"]
            if part["type"] == "text"
        ]
        assert texts == ["hello", "You said hello", "again", "You said again"]


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (types.ElicitResult(action="accept", content={"approved": True}), "I read: done"),
        (types.ElicitResult(action="accept", content={"approved": False, "reason": "no"}), "I read: denied: no"),
        (types.ElicitResult(action="decline"), "I read: denied: no reason was given"),
    ],
    ids=["approved", "denied", "declined"],
)
async def test_an_approval_is_asked_of_the_client(served: Served, decision: types.ElicitResult, text: str) -> None:
    """The client's user decides, and the call goes on; its progress says what it does."""
    asked: list[str] = []
    reports: list[tuple[float, float | None, str | None]] = []

    async def decide(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return decision

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with connect(served, elicitation_callback=decide) as client:
        result = await client.call_tool("shop", {"message": "guard"}, progress_callback=note)
    assert result.structured_content["answer"] == text
    assert len(asked) == 1
    assert "guarded" in asked[0]
    assert "the model answers" in [message for _, _, message in reports]
    assert [progress for progress, _, _ in reports] == sorted(progress for progress, _, _ in reports)


async def test_a_client_whose_user_does_not_decide_gets_the_session(served: Served) -> None:
    """The call ends, and the session still waits."""

    async def dismiss(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="cancel")

    async with connect(served, elicitation_callback=dismiss) as client:
        result = await client.call_tool("shop", {"message": "guard"})
    assert result.structured_content["status"] == "awaiting_approval"
    session = served.app.state.clew.session(served.scope(result.structured_content["session_id"]))
    assert (await session.status()).status == "awaiting_approval"


async def test_a_client_that_cannot_be_asked_waits(served: Served) -> None:
    """Until a person has decided elsewhere."""
    async with connect(served, mode=EARLIER) as client:
        session_id = make_id()
        await asyncio.gather(
            _approve_once(served, session_id),
            _expect(client.call_tool("shop", {"message": "guard", "session_id": session_id}), "I read: done"),
        )


async def _approve_once(served: Served, session_id: str) -> None:
    session = served.app.state.clew.session(served.scope(session_id))

    async def waits() -> bool:
        try:
            return bool((await session.status()).pending_approvals)
        except Exception:  # the call has not opened the session yet
            return False

    await wait_until(waits)
    (call,) = (await session.status()).pending_approvals
    await session.approve(call.tool_call_id)


async def _expect(call: Any, text: str) -> None:
    assert (await call).structured_content["answer"] == text


async def test_a_cancelled_call_cancels_its_request(served: Served) -> None:
    """A client that ends the call while the model writes ends the run."""
    session_id = make_id()
    began = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    async with connect(served) as client:
        arguments = {"message": "long story", "session_id": session_id}
        call = asyncio.create_task(client.call_tool("back_office", arguments, progress_callback=note))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await began.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        session = served.app.state.clew.session(served.scope(session_id))

        async def has_ended() -> bool:
            return [entry.payload["status"] for entry in await session.entries(kind="run")] == ["cancelled"]

        await wait_until(has_ended)


async def test_what_is_refused_is_an_error_of_the_tool(served: Served) -> None:
    """The model of the client reads the contract's word; an unknown tool is an error of the protocol."""
    async with connect(served) as client:
        for arguments in ({}, {"message": "hi", "session_id": "a:b"}, {"message": "hi", "more": 1}):
            result = await client.call_tool("shop", arguments)
            assert result.is_error
            (content,) = result.content
            assert isinstance(content, types.TextContent)
            assert content.text.startswith("invalid_input: ")
        with pytest.raises(MCPError):
            await client.call_tool("other", {"message": "hi"})


async def test_another_tenant_reads_no_session(served: Served) -> None:
    """Neither by its id nor by its workflow's, and it is in no list."""
    async with connect(served) as client:
        session_id = (await client.call_tool("shop", {"message": "hello"})).structured_content["session_id"]
    stranger = served.stranger.headers["Authorization"].removeprefix("Bearer ")
    async with connect(served, stranger) as client:
        for name in (session_id, served.scope(session_id)):
            with pytest.raises(MCPError):
                await client.read_resource(f"clew://sessions/{name}")
        assert (await client.list_resources()).resources == []


async def test_a_client_needs_a_key(served: Served) -> None:
    """Without one the request is refused with 401, before anything of MCP."""
    refused = await served.http.post("/v1/mcp", json={}, headers={"Authorization": "Bearer clew_wrong"})
    assert refused.status_code == 401
