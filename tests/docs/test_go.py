"""The programs in Go on the pages: a worker with a remote tool, and a client, built from the contract alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import pytest

from clew.local import Reply, ToolCall
from clew.local.child import child_process
from docs.generate import DOCS
from tests.support.hostile_input import assert_unharmed
from tests.support.processes import ROOT
from tests.support.rolling import make_id
from tests.support.stack import Stack, get_last_message

MODULE = ROOT / "tests/docs/go"
"""Pins Temporal's SDK with its hashes."""
BUILD_SECONDS = 500.0

pytestmark = pytest.mark.slow


async def build(page: str, folder: Path, **replaced: str) -> Path:
    """Build the program in Go that a page has. The test is skipped where there is no compiler."""
    if (go := shutil.which("go")) is None:
        pytest.skip("Go is not installed")
    (block,) = re.findall(r"^```go\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    for old, new in replaced.items():
        assert f'"{old}"' in block
        block = block.replace(f'"{old}"', f'"{new}"')
    (folder / "main.go").write_text(block)
    for file in ("go.mod", "go.sum"):
        shutil.copy(MODULE / file, folder)
    program = folder / "program"
    environ = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    process = await asyncio.create_subprocess_exec(
        *(go, "build", "-mod=readonly", "-o", program, "."), cwd=folder, env=environ, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(BUILD_SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return program


async def test_a_worker_in_go_runs_a_remote_tool(stack: Stack, tmp_path: Path) -> None:
    """A session calls the tool of the page about tools, and gets its result with the call's idempotency key."""
    program = await build("tools.md", tmp_path)

    def script(body: dict[str, object]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user" and newest["content"] == "go":
            return Reply(tool_calls=(ToolCall("weather", {"city": "Łódź"}),))
        return Reply(newest["content"] if newest["role"] == "tool" else "fine")

    environ = {**os.environ, "TEMPORAL_ADDRESS": stack.server.address}
    async with child_process("go", [program], env=environ, folder=tmp_path):
        session = await stack.open(script, tools=["weather"], request_timeout_seconds=120)
        answer = json.loads(await session.ask("go"))
    assert answer == {"city": "Łódź", "degrees": 21, "idempotencyKey": f"{session.id}/tool00001"}
    await assert_unharmed(stack, session.id)


async def test_a_client_in_go_starts_a_session_and_goes_on_with_it(stack: Stack, tmp_path: Path) -> None:
    """The program of the page about Go gets an answer of a new session, and of the same session again."""
    program = await build("typescript.md", tmp_path, clew=stack.clew.task_queue)

    def script(body: dict[str, Any]) -> Reply:
        text = get_last_message(body)["content"]
        return Reply("fine" if text == "still there?" else f"{len(body['messages'])}: {text}")

    model = stack.add_model(script)
    session_id = make_id()
    for text, answer in (("Dzień dobry", "1: Dzień dobry"), ("again", "3: again")):
        process = await asyncio.create_subprocess_exec(
            *(program, session_id, model, text),
            env={**os.environ, "TEMPORAL_ADDRESS": stack.server.address},
            stdout=PIPE,
            stderr=PIPE,
        )
        output, errors = await process.communicate()
        assert (process.returncode, output.decode().strip()) == (0, answer), errors.decode()
    await assert_unharmed(stack, session_id)
