"""The page about testing: its tests of a real model, of recorded sessions and of scripts, run as a user runs them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Image, tool
from clew.local import Reply, ScriptedModel, ToolCall, scripted_model
from clew.testing import evaluate, stack
from docs.generate import DOCS
from tests.support.media import make_png
from tests.support.page_code import find_block, run_block

PAGE = "testing.md"
EXAMPLE = DOCS.parent / "examples" / "own-repository"
REAL = find_block(PAGE, "# tests/test_real_model.py")


def choose(body: dict[str, Any]) -> Reply:
    """Look an order up, unless the customer only talks. One of the ten prompts gets the wrong tool."""
    text = body["messages"][-1]["content"]
    if text in ("Hello!", "Thank you, that is all."):
        return Reply("You are welcome.")
    return Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 1234})])


def choose_badly(_body: dict[str, Any]) -> Reply:
    """Refund whatever is asked."""
    return Reply(tool_calls=[ToolCall("refund", {"order_id": 1234})])


async def run_real(model: ScriptedModel, folder: Path) -> str:
    """Run the page's test by pytest, in a copy of the example, with the address of another model."""
    shutil.copytree(EXAMPLE / "support", folder / "support", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "test_real_model.py").write_text(REAL)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CLEW"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        cwd=folder,
        env={**environ, "OPENAI_API_KEY": "a-key-of-a-test", "OPENAI_BASE_URL": model.base_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return str(out.decode())


@pytest.mark.slow
async def test_the_real_models_choices_are_asserted(tmp_path: Path) -> None:
    """Ten prompts: a model that errs once passes, one that refunds always does not. No tool runs."""
    async with scripted_model(choose) as model:
        output = await run_real(model, tmp_path / "good")
        assert "1 passed" in output, output
        assert len(model.requests) == 10
    async with scripted_model(choose_badly) as model:
        assert "1 failed" in await run_real(model, tmp_path / "bad")


async def test_a_script_reads_the_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page's function, and its assertions about images."""

    @tool
    def lookup(order: str) -> str:
        """Look up an order."""
        return "shipped"

    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        return order

    names: dict[str, Any] = {"Reply": Reply, "ToolCall": ToolCall, "Image": Image, "Path": Path, "png": make_png()}
    await run_block(find_block(PAGE, "def script(request)"), names)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "screen.png").write_bytes(make_png(40, 30))
    async with stack(tools=[lookup, refund]) as running:
        session = await running.open(names["script"], tools=["lookup", "refund"])
        assert await session.ask("Where is it?") == "The order is shipped."
        await run_block(find_block(PAGE, "request.media"), names | {"stack": running})


async def test_a_recorded_session_is_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    """The page's loop shows what another version replies."""
    agent = Agent("support", model="openai:gpt-4o")
    async with stack(agents=[agent], scripts={"support": "fine"}) as running:
        session = await running.open(agent="support")
        await session.ask("hello")
        entries = await session.entries()

    async def ask_again(_file: str, support: Agent) -> object:
        return await evaluate(entries, support, script=[Reply(tool_calls=[ToolCall("refund", {})])])

    await run_block(find_block(PAGE, "evaluation.turns"), {"evaluate": ask_again, "support": agent})
    assert "refund" in capsys.readouterr().out
