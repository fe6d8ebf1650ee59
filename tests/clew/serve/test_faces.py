"""What every face that follows a request does: OpenAI's APIs, `useChat`, AG-UI, MCP, and the events of sessions."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from clew import Agent, Clew
from clew.local import ToolCall
from clew.session.events import follow
from tests.support import toolbox
from tests.support.examples import mark_slow_except
from tests.support.scripts import make_boss, make_tool_script
from tests.support.serving import Served, run_service
from tests.support.stack import Stack, make_client, run_deployment
from tests.support.waiting import PATIENCE_SECONDS

CHATS = ("useChat", "AG-UI", "MCP")
"""The faces whose clients name the session and its agent in each request."""


@pytest.fixture
async def served(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The service, before a worker with an agent whose subagent has a tool that waits for an approval."""
    monkeypatch.setattr(follow, "SUBAGENTS_SECONDS", 0.2)
    clew = make_client(stack)
    async with run_deployment(stack, clew, make_boss(stack), tools=(toolbox.guarded,)), run_service(clew) as service:
        yield service


def make_request(face: str, name: str, agent: str = "boss", text: str = "go", **headers: str) -> dict[str, Any]:
    """Make the request with which a client of a face sends a message and follows it."""
    match face:
        case "Responses":
            return {"url": "/v1/responses", "json": {"model": agent, "input": text, "stream": True}}
        case "Chat Completions":
            body = {"model": agent, "messages": [{"role": "user", "content": text}], "stream": True}
            return {"url": "/v1/chat/completions", "json": body, "headers": {"X-Clew-Session": name}}
        case "useChat":
            said = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
            return {"url": "/v1/ui/chat", "json": {"id": name, "messages": [said], "agent": agent}}
        case "AG-UI":
            empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}, "runId": "run"}
            body = {"threadId": name, "messages": [{"id": "m1", "role": "user", "content": text}], **empty}
            return {"url": f"/v1/ag-ui/agents/{agent}/run", "json": body}
        case "MCP":
            arguments = {"message": text, "agent": agent, "session_id": name}
            called = {"name": "run_agent", "arguments": arguments, "_meta": {"progressToken": "p-1"}}
            accepted = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}
            headers = {**accepted, **headers}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
            return {"url": "/v1/mcp", "json": body, "headers": headers}
    raise AssertionError(face)


async def read_until_told(http: httpx.AsyncClient, request: dict[str, Any], words: str) -> list[dict[str, Any]]:
    """Read the events of a stream up to the one that has some words."""
    events: list[dict[str, Any]] = []
    async with http.stream("POST", timeout=PATIENCE_SECONDS, **request) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                if words in line:
                    break
    return events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("face", "words"),
    mark_slow_except(
        [("Responses", "clew:waiting"), ("MCP", "awaiting_approval")],
        [
            ("Responses", "clew:waiting"),
            ("Chat Completions", "clew_waiting"),
            ("useChat", "data-subagent-waiting"),
            ("AG-UI", "clew.subagent_waiting"),
            ("MCP", "awaiting_approval"),
        ],
    ),
)
async def test_a_call_that_waits_in_a_subagent_is_told(served: Served, face: str, words: str) -> None:
    """With its session as the caller knows it. The decision is sent there, and the request goes on."""
    name = f"chat-{uuid.uuid4().hex}"
    child = f"{name}.tool00001"
    told = (await read_until_told(served.http, make_request(face, name), words))[-1]
    match face:
        case "Responses" | "Chat Completions":
            waiting = told if face == "Responses" else told["clew_waiting"]
            if face == "Responses":
                child = waiting["session_id"]  # The service has named the session.
                name = child.removesuffix(".tool00001")
            assert (waiting["session_id"], waiting["tool_call_id"]) == (child, "tool00001")
            assert (waiting["name"], waiting["needs"]) == ("guarded", "approval")
        case "useChat":
            waiting = told["data"]
            assert told["transient"]
            assert (waiting["sessionId"], waiting["toolCallId"]) == (child, "tool00001")
            assert (waiting["toolName"], waiting["needs"]) == ("guarded", "approval")
        case "AG-UI":
            waiting = told["value"]
            assert (waiting["session_id"], waiting["tool_call_id"]) == (child, "tool00001")
        case "MCP":
            result = told["result"]
            (waiting,) = result["structuredContent"]["approvals"]
            assert waiting == {"session_id": child, "tool_call_id": "tool00001", "tool": "guarded"}
            assert f"/v1/sessions/{child}/approvals/tool00001" in result["content"][0]["text"]
    assert served.tenant not in json.dumps(told)
    answer = await served.http.post(f"/v1/sessions/{child}/approvals/tool00001", json={"decision": "approve"})
    assert answer.status_code == 200
    async for event in served.receive(f"/v1/sessions/{name}/events?from_seq=0"):
        if event.data.get("entry", {}).get("kind") == "run":
            assert event.data["entry"]["payload"]["status"] == "completed"
            break


@pytest.fixture
async def reporting(stack: Stack) -> AsyncIterator[tuple[Served, str]]:
    """The service, before an agent whose tool has reported its progress and waits; and the gate that it waits for."""
    clew, gate = make_client(stack), uuid.uuid4().hex
    model = stack.add_model(make_tool_script(ToolCall("report_and_wait", {"gate": gate})))
    agent = Agent("reporter", model=model, tools=[toolbox.report_and_wait])
    async with run_deployment(stack, clew, agent, tools=(toolbox.report_and_wait,)), run_service(clew) as service:
        yield service, gate
        toolbox.get_gate(gate).set()


@pytest.mark.parametrize("face", ["Responses", "Chat Completions", "useChat", "AG-UI", "MCP"])
async def test_the_progress_of_a_tool_is_told(reporting: tuple[Served, str], face: str) -> None:
    """The report and the part that is done, while the tool runs. A protocol that has no event for it gets Clew's."""
    request = make_request(face, f"chat-{uuid.uuid4().hex}", agent="reporter")
    told = (await read_until_told(reporting[0].http, request, "half of it"))[-1]
    report = {"name": "report_and_wait", "text": "half of it", "fraction": 0.5}
    call = {"tool_call_id": "tool00001", **report}
    match face:
        case "Responses":
            assert told.pop("sequence_number") > 0
            assert told == {"type": "clew:tool_progress", **call}
        case "Chat Completions":
            assert told["clew_tool_progress"] == call
            assert told["choices"][0]["delta"] == {}
        case "useChat":
            data = {"toolCallId": "tool00001", "text": "half of it", "fraction": 0.5}
            assert told == {"type": "data-tool-progress", "id": "tool00001", "data": data, "transient": True}
        case "AG-UI":
            assert (told["type"], told["name"]) == ("CUSTOM", "clew.tool_progress")
            assert told["value"].items() >= call.items()
        case "MCP":
            assert told["method"] == "notifications/progress"
            assert told["params"]["message"] == "report_and_wait: half of it (50%)"


async def test_the_events_of_a_session_have_the_progress_of_a_tool_and_its_history_has_none(
    reporting: tuple[Served, str],
) -> None:
    """Of the session and of the request. No entry and no event of the workflow keeps a report."""
    served, gate = reporting
    session_id = f"chat-{uuid.uuid4().hex}"
    await served.http.put(f"/v1/sessions/{session_id}", json={"agent": "reporter"})
    sent = await served.http.post(f"/v1/sessions/{session_id}/messages", json={"content": "go"})
    requests = f"/v1/sessions/{session_id}/requests/{sent.json()['request_id']}"
    for path in (f"/v1/sessions/{session_id}/events?from_seq=0", f"{requests}/events"):
        async with aclosing(served.receive(path)) as events:
            told = await anext(event.data async for event in events if event.data["type"] == "tool_progress")
        assert (told["tool_call_id"], told["text"], told["fraction"]) == ("tool00001", "half of it", 0.5)
    toolbox.get_gate(gate).set()
    assert (await served.http.get(requests, params={"wait": 60})).json()["answer"] == "all of it"
    clew: Clew = served.app.state.clew
    history = await clew.temporal.get_workflow_handle(served.scope(session_id)).fetch_history()
    kept = b"".join(event.SerializeToString() for event in history.events)
    assert b"all of it" in kept
    assert b"half of it" not in kept


async def test_the_events_of_a_session_tell_what_waits_in_a_subagent(served: Served) -> None:
    """Once for each viewer, until the request ends."""
    name = f"chat-{uuid.uuid4().hex}"
    await served.http.put(f"/v1/sessions/{name}", json={"agent": "boss"})
    await served.http.post(f"/v1/sessions/{name}/messages", json={"content": "go", "request_id": "r1"})
    told: list[dict[str, Any]] = []
    async for event in served.receive(f"/v1/sessions/{name}/requests/r1/events"):
        if event.data["type"] == "subagent_waiting":
            told.append(event.data)
            path = f"/v1/sessions/{event.data['session_id']}/approvals/{event.data['tool_call_id']}"
            await served.http.post(path, json={"decision": "approve"})
    (waiting,) = told
    assert (waiting["needs"], waiting["name"], waiting["request_id"]) == ("approval", "guarded", "r1")


@pytest.mark.slow
@pytest.mark.parametrize("face", mark_slow_except(["AG-UI"], CHATS))
async def test_an_unknown_agent_leaves_no_session(served: Served, face: str) -> None:
    """The client, which names the agent in each request, may name another one under the same id."""
    name = f"chat-{uuid.uuid4().hex}"
    async with served.http.stream("POST", **make_request(face, name, "nobody")) as answer:
        assert "there is no such agent" in (await answer.aread()).decode()
    assert (await served.http.get(f"/v1/sessions/{name}")).status_code == 404
    told = await read_until_told(served.http, make_request(face, name), "subagent" if face != "MCP" else "awaiting")
    assert told


@pytest.mark.parametrize("face", mark_slow_except(["MCP"], CHATS))
async def test_a_session_with_more_than_a_failed_request_stays(served: Served, face: str) -> None:
    """What was put into it is not the failure's to delete."""
    name = f"chat-{uuid.uuid4().hex}"
    await served.http.put(f"/v1/sessions/{name}", json={"agent": "nobody"})
    result = {"operation": {"type": "replace", "result_context": {"messages": [{"role": "user", "content": "kept"}]}}}
    assert (await served.http.post(f"/v1/sessions/{name}/context", json=result)).status_code == 200
    async with served.http.stream("POST", **make_request(face, name, "nobody")) as answer:
        assert "there is no such agent" in (await answer.aread()).decode()
    assert (await served.http.get(f"/v1/sessions/{name}")).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("face", mark_slow_except(["useChat"], CHATS))
async def test_an_id_with_another_message_is_a_conflict(served: Served, face: str) -> None:
    """The id of a message, or the `Idempotency-Key` of an MCP client."""
    name, key = f"chat-{uuid.uuid4().hex}", {"Idempotency-Key": "k1"} if face == "MCP" else {}
    words = "awaiting" if face == "MCP" else "subagent"
    for _ in range(2):
        assert await read_until_told(served.http, make_request(face, name, **key), words)
    async with served.http.stream("POST", **make_request(face, name, text="other", **key)) as answer:
        assert "request_reused" in (await answer.aread()).decode()
