"""Sessions with tools of MCP servers, on a real Temporal server."""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path

import pytest

from clew import Clew, RequestFailed
from clew.local import Reply, ToolCall
from clew_activities.mcp.settings import McpSettings, ProcessSettings
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import make_worker
from tests.support import bad_mcp_server
from tests.support.stack import KEYS, Stack, get_last_message


async def test_a_session_uses_the_tools_of_a_server_and_survives_its_death(stack: Stack, tmp_path: Path) -> None:
    """Schemas are pinned, calls run, breaks are results that the model reads; a dead server fails a request only."""
    program = tmp_path / "server.py"
    queue = f"mcp-{uuid.uuid4().hex}"
    clew = Clew(stack.clew.temporal, task_queue=queue)
    providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})
    calls = [
        ToolCall("mcp__bad__number", {"n": 3}),
        ToolCall("mcp__bad__number", {"n": "three"}),
        ToolCall("mcp__bad__die", {}),
    ]

    def script(body: dict[str, object]) -> Reply:
        message = get_last_message(body)
        return Reply(tool_calls=(calls.pop(0),)) if calls else Reply(f"last: {message['content']}")

    settings = McpSettings({"bad": ProcessSettings(command=sys.executable, args=(str(program),))})
    async with (
        make_http_client() as http,
        make_worker(
            clew.temporal,
            task_queue=queue,
            providers=providers,
            tools={},
            http=http,
            store=stack.store,
            keys=KEYS,
            mcp=settings,
        ),
    ):
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
        await session.close()
