"""Sessions with tools of MCP servers, on a real Temporal server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Clew, RequestFailed
from clew.local import Reply, ToolCall
from clew_activities.tools.mcp.mcp_settings import McpSettings, ProcessSettings
from tests.support import bad_mcp_server
from tests.support.processes import open_session_on, run_worker_process
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.usefixtures("patient_connections")


async def test_a_session_uses_the_tools_of_a_server_and_survives_its_death(stack: Stack, tmp_path: Path) -> None:
    """Schemas are pinned, calls run, breaks are results that the model reads; a dead server fails a request only."""
    program = tmp_path / "server.py"
    clew = make_client(stack)
    calls = [
        ToolCall("mcp__bad__number", {"n": 3}),
        ToolCall("mcp__bad__number", {"n": "three"}),
        ToolCall("mcp__bad__die", {}),
    ]

    def script(body: dict[str, object]) -> Reply:
        message = get_last_message(body)
        return Reply(tool_calls=(calls.pop(0),)) if calls else Reply(f"last: {message['content']}")

    settings = McpSettings({"bad": ProcessSettings(command=sys.executable, args=(str(program),))})
    async with run_deployment(stack, clew, mcp=settings):
        session = await clew.open(
            f"test-{uuid.uuid4().hex}",
            model=stack.add_model(script),
            tools=["mcp:bad/*"],
            require_approval=["mcp:bad/hang"],
        )
        with pytest.raises(RequestFailed, match="the MCP server 'bad' cannot be used") as failed:
            await session.ask("go")
        assert failed.value.outcome.error is not None
        assert failed.value.outcome.error.type == "mcp_unavailable"
        shutil.copy(bad_mcp_server.__file__, program)
        answer = await session.ask("go")
        assert "its process has ended" in answer
        messages = [entry.payload for entry in await session.entries(kind="ai_message")]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        assert results[0] == '{"n": 3}'
        assert "n: it is not of the form" in results[1]
        assert "mcp__bad__number" in str((await session.entries(kind="config"))[-1].payload)
        # The list that the worker has read stands while the server is down.
        program.unlink()
        calls.append(ToolCall("mcp__bad__number", {"n": 4}))
        assert "tool 'mcp__bad__number' cannot be used at present" in await session.ask("go")
        assert [entry.payload.get("changes") for entry in await session.entries(kind="config")] == [None, ["tools"]]
        await session.close()


async def test_a_server_that_changes_its_tools_reaches_open_sessions(stack: Stack) -> None:
    """At their next request, once, and with an entry that says it. A pinned session keeps its schemas."""
    clew = make_client(stack)
    calls = [ToolCall("mcp__good__grow", {})]

    def script(body: dict[str, Any]) -> Reply:
        tools = [tool["function"]["name"] for tool in body.get("tools", ())]
        return Reply(tool_calls=(calls.pop(),)) if calls else Reply(f"added: {'mcp__good__added' in tools}")

    model = stack.add_model(script)
    settings = ProcessSettings(
        command=sys.executable,
        args=("-m", "tests.support.mcp_server"),
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    agent = Agent("counter", model=model, tools=["mcp:good/*"])
    async with run_deployment(stack, clew, agent, mcp=McpSettings({"good": settings})):
        names = [f"test-{kind}-{uuid.uuid4().hex}" for kind in ("all", "one", "none", "pinned")]
        all_tools = await clew.open(names[0], model=model, tools=["mcp:good/*"])
        one_tool = await clew.open(names[1], model=model, tools=["mcp:good/add"])
        no_tools = await clew.open(names[2], model=model)
        pinned = await clew.open(names[3], agent="counter", pin=True)
        sessions = (pinned, one_tool, no_tools, all_tools)
        # Each has been prepared before the list changes.
        for session in sessions[:3]:
            await session.context()
        assert [await all_tools.ask("grow"), await all_tools.ask("go")] == ["added: False", "added: True"]
        assert [await session.ask("go") for session in sessions] == [*["added: False"] * 3, "added: True"]
        await all_tools.ask("again")
        changes = [[entry.payload.get("changes") for entry in await each.entries(kind="config")] for each in sessions]
        assert changes == [[None], [None], [None], [None, ["tools"]]]
        assert [await _count_preparations(clew, name) for name in names] == [2, 2, 1, 1]
        for session in sessions:
            await session.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_no_server_outlives_its_worker(stack: Stack, tmp_path: Path, number: signal.Signals) -> None:
    """A worker that is killed closes the server's standard input."""
    pids, config = tmp_path / "pids", tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": [bad_mcp_server.__file__], "env": {"BAD_MCP_PID": str(pids)}}
    config.write_text(json.dumps({"mcpServers": {"bad": server}}))
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue, CLEW_MCP=str(config)) as worker:
        session = await open_session_on(stack, queue, lambda _: Reply("hello"), tools=["mcp:bad/number"])
        assert await session.ask("go") == "hello"
        (pid,) = map(int, pids.read_text().split())
        assert _is_running(pid)
        os.kill(worker.pid, number)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker.wait_for_end()
        # It is no child of this process: nothing announces its end.
        await wait_until(lambda: not _is_running(pid))
        assert "Traceback" not in worker.log.read_text()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def _count_preparations(clew: Clew, session_id: str) -> int:
    history = await clew.temporal.get_workflow_handle(session_id).fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return sum(attributes.activity_type.name == "prepare" for attributes in scheduled)
