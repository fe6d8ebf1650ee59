"""The SKILL.md of the package: a coding agent that follows it has a tested agent with a tool."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clew.cli.app import app
from clew.local import Reply, ToolCall
from tests.support.page_agents import deploy_agent, run_backend
from tests.support.stack import Stack

SKILL = files("clew").joinpath("SKILL.md").read_text(encoding="utf-8")
SECONDS = 240
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", SKILL, re.DOTALL | re.MULTILINE)


FILES = {
    text.partition("\n")[0].removeprefix("# "): text.partition("\n")[2]
    for language, text in BLOCKS
    if language in ("python", "toml")
}


def make_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS",)}


def test_the_command_prints_it() -> None:
    """With the head by which agents choose it: a name and a description of at most 1 024 characters."""
    printed = CliRunner().invoke(app, ["skill"])
    assert (printed.exit_code, printed.output) == (0, SKILL)
    head = re.match(r"---\nname: clew\ndescription: (.+)\n---\n", SKILL)
    assert head
    assert len(head[1]) <= 1024


@pytest.mark.slow
def test_the_steps_work_as_they_are_typed(tmp_path: Path) -> None:
    """The files are those of the page, and its command prints what it shows."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ((_, command),) = [block for block in BLOCKS if block[0] == ""]
    ((_, shown),) = [block for block in BLOCKS if block[0] == "text"]
    typed = command.replace("python ", f"{sys.executable} -W error ", 1)
    ended = subprocess.run(
        ["bash", "-c", typed], cwd=tmp_path, env=make_environ(), capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert shown.strip() in ended.stdout


@pytest.mark.slow
async def test_the_backend_asks_the_agent(stack: Stack) -> None:
    """Its code runs as it is written, against a worker with the agent of the page."""

    def answer(body: dict[str, Any]) -> Reply:
        newest = body["messages"][-1]
        if newest["role"] == "tool":
            return Reply(f"There are {newest['content']}.")
        return Reply(tool_calls=[ToolCall("count_stock", {"item": "lamp"})])

    async with deploy_agent(stack, FILES["shop.py"], "shop", stack.add_model(answer)) as client:
        assert await run_backend(stack, client, FILES["backend.py"], "counter-1") == "There are 3.\n"
