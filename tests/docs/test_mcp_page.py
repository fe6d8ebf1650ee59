"""The page about MCP servers: its file is one that a worker reads, and its session's tools come from a server."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from clew.local import Reply, ToolCall
from clew_activities.tools.mcp.mcp_connection import LIST_LIFE_SECONDS, MAX_TOOLS, MAX_UNANSWERED, PING_SECONDS
from clew_activities.tools.mcp.mcp_settings import McpSettings, ProcessSettings, read_mcp_settings
from docs.generate import DOCS
from tests.support import bad_mcp_server
from tests.support.page_code import find_block, run_block
from tests.support.stack import Stack, get_last_message, make_client, run_deployment

PAGE = "mcp.md"


def test_a_worker_reads_the_file(tmp_path: Path) -> None:
    """Both servers, with the token of the environment; the page names the default timeout and the limits."""
    path = tmp_path / "mcp.json"
    path.write_text(find_block(PAGE, "mcpServers", "json"))
    settings = read_mcp_settings({"CLEW_MCP": str(path), "TRACKER_TOKEN": "a-secret-token"})
    files, tracker = settings.servers["files"], settings.servers["tracker"]
    assert isinstance(files, ProcessSettings)
    assert json.loads(path.read_text())["mcpServers"]["tracker"]["url"] == tracker.url  # type: ignore[union-attr]
    text = " ".join((DOCS / PAGE).read_text().split())
    for words in (
        f"Default: {files.timeout_seconds:g}.",
        f"older than {LIST_LIFE_SECONDS:g} seconds",
        f"within {PING_SECONDS:g} seconds",
        f"after {MAX_UNANSWERED} calls in a row",
        f"after the {MAX_TOOLS}th",
    ):
        assert words in text


@pytest.mark.usefixtures("patient_connections")
async def test_the_session_has_the_servers_tools(stack: Stack, tmp_path: Path) -> None:
    """The page's call of `open`, with a server in Python in place of its two."""
    program = tmp_path / "server.py"
    shutil.copy(bad_mcp_server.__file__, program)
    server = ProcessSettings(command=sys.executable, args=(str(program),))
    client = make_client(stack)

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "tool":
            return Reply(newest["content"])
        return Reply(tool_calls=[ToolCall("mcp__files__number", {"n": 3})])

    async with run_deployment(stack, client, mcp=McpSettings({"files": server, "tracker": server})):
        code = find_block(PAGE, "clew.open").replace("create_issue", "hang")
        names = {"clew": client}
        session = (await run_block(code.replace("openai:gpt-4o", stack.add_model(script)), names))["session"]
        assert await session.ask("go") == '{"n": 3}'
