"""The MCP server with the official client, on a real server, in each version of the protocol."""

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

from clew import Session
from clew.serve import ServeSettings
from clew.serve.mcp_server import make_tools, name_tool
from tests.support.holding import HoldingStore, hold_intake, note_answers, wait_for_answers
from tests.support.rolling import make_id
from tests.support.serving import Served, run_service
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until

BACK_OFFICE = name_tool("back.office")
"""The tool of an agent whose name no tool can have."""
UNSTRUCTURED = "2025-03-26"
"""A version without structured results, and without questions to the client's user."""
ASKING = ("2025-06-18", "2025-11-25", "2026-07-28")
"""The versions in which a server asks the client's user."""
PROTOCOLS = (UNSTRUCTURED, *ASKING)
MODERN = ASKING[-1]
"""The version that has no sessions."""


@pytest.fixture
async def served(stack: Stack) -> AsyncIterator[Served]:
    """The service with a key of a tenant that may use the agents `shop` and `back.office`."""
    async with run_shop(stack, "shop", "back.office") as service:
        yield service


@pytest.fixture(autouse=True)
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the client the time that a busy machine needs: it takes a slow server for one of an old version."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A version of the protocol. The client offers it instead of the newest one that has sessions."""
    version: str = request.param
    monkeypatch.setattr("mcp.client.session.LATEST_HANDSHAKE_VERSION", version)
    return version


def with_protocols(*protocols: str) -> pytest.MarkDecorator:
    """Run a test in versions of the protocol: in the newest one, and the oldest one that it takes, always."""
    versions = [
        pytest.param(protocol, marks=pytest.mark.slow) if protocols[0] < protocol < MODERN else protocol
        for protocol in protocols
    ]
    return pytest.mark.parametrize("protocol", versions, indirect=True)


@asynccontextmanager
async def connect(
    served: Served, token: str | None = None, *, protocol: str = MODERN, **options: Any
) -> AsyncIterator[Client]:
    """Connect the official client to the service, in a version of the protocol."""
    headers = {"Authorization": f"Bearer {token or served.token}"}
    mode: Any = "auto" if protocol == MODERN else "legacy"
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS) as http:
        transport = streamable_http_client(f"{served.address}/v1/mcp", http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            assert client.protocol_version == protocol
            yield client


def read_result(result: types.CallToolResult) -> dict[str, Any]:
    """Read the result of a tool, which is a text in the versions without structured results."""
    if result.structured_content is not None:
        return dict(result.structured_content)
    content = result.content[-1]
    assert isinstance(content, types.TextContent)
    return dict(json.loads(content.text))


def find_session(served: Served, session_id: str) -> Session:
    """Find the session of a call."""
    session: Session = served.app.state.clew.session(served.scope(session_id))
    return session


def test_a_key_without_agents_names_one() -> None:
    """Its only tool takes the agent; the tools of other keys are their agents."""
    (tool,) = make_tools(None)
    assert "agent" in tool.input_schema["properties"]
    assert [tool.name for tool in make_tools(["a", "b.c"])] == ["a", name_tool("b.c")]


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_page_of_another_origin_is_refused(stack: Stack, method: str) -> None:
    """Its name may lead to the service's address. Clients that are no browsers name no origin."""
    async with run_service(stack.clew, settings=ServeSettings(cors_origins=("https://app.example",))) as served:
        host = served.address.removeprefix("http://")
        port = host.rpartition(":")[2]

        async def ask(**headers: str) -> int:
            return (await served.http.request(method, "/v1/mcp", headers=headers)).status_code

        refused = [
            {"Origin": "http://evil.example"},
            {"Origin": f"http://evil.example:{port}", "Host": f"evil.example:{port}"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": f"http://{host}", "Host": "evil.example"},
            {"Origin": f"ftp://{host}"},
            {"Origin": "https://app.example.evil.example"},
            {"Origin": "null"},
            {"Origin": ""},
        ]
        assert [await ask(**headers) for headers in refused] == [403] * len(refused)
        taken = [
            {},
            {"Origin": "https://app.example"},
            {"Origin": f"http://{host}"},
            {"Origin": f"http://localhost:{port}", "Host": f"localhost:{port}"},
            {"Origin": f"http://[::1]:{port}", "Host": f"[::1]:{port}"},
        ]
        assert 403 not in [await ask(**headers) for headers in taken]


async def test_the_error_of_a_missing_resource_names_it(served: Served) -> None:
    async with connect(served) as client:
        for uri in ("clew://sessions/none", "file:///etc/passwd"):
            with pytest.raises(MCPError) as missing:
                await client.read_resource(uri)
            assert (missing.value.code, missing.value.data) == (types.INVALID_PARAMS, {"uri": uri})


@pytest.mark.slow
@with_protocols(*PROTOCOLS)
async def test_an_agent_is_a_tool(served: Served, protocol: str) -> None:
    """Its result names the session, which the next call continues."""
    async with connect(served, protocol=protocol) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["shop", BACK_OFFICE]
        called = await client.call_tool(BACK_OFFICE, {"message": "hello"})
        first = read_result(called)
        assert (called.is_error, first["status"]) == (False, "completed")
        assert first["answer"] == "You said hello"
        session_id = first["session_id"]
        second = read_result(await client.call_tool(BACK_OFFICE, {"message": "again", "session_id": session_id}))
        assert second["session_id"] == session_id
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


@pytest.mark.slow
async def test_a_call_waits_for_a_session_that_decides_about_its_message_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is the answer, and the message has run once."""
    store = HoldingStore(stack.store)
    async with run_shop(stack, "shop", store=store) as served, connect(served) as client:
        session_id = read_result(await client.call_tool("shop", {"message": "hello"}))["session_id"]
        session = find_session(served, session_id)
        with note_answers(monkeypatch) as answers:
            async with hold_intake(session, store):
                calling = asyncio.create_task(
                    client.call_tool("shop", {"message": "again", "session_id": session_id})
                )
                await wait_for_answers(answers, "entries")
        called = await calling
        assert (called.is_error, read_result(called)["answer"]) == (False, "You said again")
        assert len(await session.entries(kind="run")) == 2


@pytest.mark.slow
@with_protocols(*ASKING)
@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (types.ElicitResult(action="accept", content={"approved": True}), "I read: done"),
        (types.ElicitResult(action="accept", content={"approved": False, "reason": "no"}), "I read: denied: no"),
        (types.ElicitResult(action="decline"), "I read: denied: no reason was given"),
    ],
    ids=["approved", "denied", "declined"],
)
async def test_an_approval_is_asked_of_the_client(
    served: Served, protocol: str, decision: types.ElicitResult, text: str
) -> None:
    """The client's user decides, and the call goes on; its progress says what it does."""
    asked: list[str] = []
    reports: list[tuple[float, float | None, str | None]] = []

    async def decide(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return decision

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with connect(served, protocol=protocol, elicitation_callback=decide) as client:
        result = await client.call_tool("shop", {"message": "guard"}, progress_callback=note)
    assert read_result(result)["answer"] == text
    assert len(asked) == 1
    assert "guarded" in asked[0]
    assert "the model answers" in [message for _, _, message in reports]
    assert [progress for progress, _, _ in reports] == sorted(progress for progress, _, _ in reports)


@with_protocols(*ASKING)
async def test_each_call_that_waits_is_asked_about(served: Served, protocol: str) -> None:
    """Two calls of a tool are two questions, with decisions of their own."""
    decisions = iter([True, False])

    async def decide(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"approved": next(decisions)})

    async with connect(served, protocol=protocol, elicitation_callback=decide) as client:
        result = read_result(await client.call_tool("shop", {"message": "guard twice"}))
    assert result["status"] == "completed"
    entries = await find_session(served, result["session_id"]).entries(kind="approval")
    assert sorted(entry.payload["decision"] for entry in entries) == ["approve", "deny"]


@pytest.mark.slow
@with_protocols(*ASKING)
async def test_a_client_whose_user_does_not_decide_gets_the_session(served: Served, protocol: str) -> None:
    """The call ends, and the session still waits."""

    async def dismiss(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="cancel")

    async with connect(served, protocol=protocol, elicitation_callback=dismiss) as client:
        result = read_result(await client.call_tool("shop", {"message": "guard"}))
    assert result["status"] == "awaiting_approval"
    assert (await find_session(served, result["session_id"]).status()).status == "awaiting_approval"


async def test_all_calls_that_wait_are_told(served: Served) -> None:
    """A client that cannot be asked reads of two approvals and of a result, with the route of each."""
    async with connect(served) as client:
        called = await client.call_tool("shop", {"message": "mixed"})
        result = read_result(called)
        session = find_session(served, result["session_id"])
        (text,) = (part.text for part in called.content if isinstance(part, types.TextContent))
        status = await session.status()
        approvals = [call.tool_call_id for call in status.pending_approvals]
        (order,) = status.pending_external_calls
        assert [call["tool_call_id"] for call in result["approvals"]] == approvals
        assert len(approvals) == 2
        assert result["results"] == [{"tool_call_id": order.tool_call_id, "tool": "order"}]
        assert all(f"/approvals/{name}" in text for name in approvals)
        assert f"/tool-results/{order.tool_call_id}" in text


@with_protocols(*PROTOCOLS)
async def test_a_client_that_cannot_be_asked_is_told_how_to_decide(served: Served, protocol: str) -> None:
    """Its call ends with the tool calls that wait, and the route that the result names decides."""

    asked: list[str] = []

    async def decide(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="cancel")

    options: dict[str, Any] = {"elicitation_callback": decide} if protocol == UNSTRUCTURED else {}
    async with connect(served, protocol=protocol, **options) as client:
        called = await client.call_tool("shop", {"message": "guard"})
    result = read_result(called)
    assert (called.is_error, result["status"], asked) == (False, "awaiting_approval", [])
    (waiting,) = result["approvals"]
    assert waiting["tool"] == "guarded"
    route = f"/v1/sessions/{result['session_id']}/approvals/{waiting['tool_call_id']}"
    content = called.content[0]
    assert isinstance(content, types.TextContent)
    assert f"POST {route}" in content.text
    assert (await served.http.post(route, json={"decision": "approve"})).status_code == 200
    request = find_session(served, result["session_id"]).request(result["request_id"])
    assert await request.answer() == "I read: done"


@with_protocols(*(version for version in ASKING if version != MODERN))
async def test_a_question_ends_when_somebody_else_decides(served: Served, protocol: str) -> None:
    """The call goes on, although the client's user has not answered."""
    asked, session_id = asyncio.Event(), make_id()

    async def wait(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing ends the wait")

    async with connect(served, protocol=protocol, elicitation_callback=wait) as client:
        call = asyncio.create_task(client.call_tool("shop", {"message": "guard", "session_id": session_id}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asked.wait()
        session = find_session(served, session_id)
        (pending,) = (await session.status()).pending_approvals
        await session.approve(pending.tool_call_id)
        assert read_result(await call)["answer"] == "I read: done"


@with_protocols(*PROTOCOLS)
async def test_a_cancelled_call_cancels_its_request(served: Served, protocol: str) -> None:
    """A client that ends the call while the model writes ends the run."""
    session_id = make_id()
    began = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    async with connect(served, protocol=protocol) as client:
        arguments = {"message": "long story", "session_id": session_id}
        call = asyncio.create_task(client.call_tool(BACK_OFFICE, arguments, progress_callback=note))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await began.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await expect_cancelled(find_session(served, session_id))
        # The session of the client has not ended with the call.
        again = await client.call_tool(BACK_OFFICE, {"message": "hello", "session_id": session_id})
        assert read_result(again)["answer"] == "You said hello"


async def expect_cancelled(session: Session) -> None:
    """Wait until the only request of a session was cancelled."""

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
