"""The page about testing: its tests of a real model, of recorded sessions and of scripts, run as a user runs them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Clew, Image, tool
from clew.local import Reply, ScriptedModel, ToolCall, scripted_model, temporal_server
from clew.testing import evaluate, replay, stack
from clew_activities.archive import Store
from docs.generate import DOCS
from tests.support.command_line import run_clew
from tests.support.media import make_png
from tests.support.page_code import find_block, run_block
from tests.support.stack import serve
from tests.support.versions import run_temporal
from tests.support.waiting import wait_until

PAGE = "testing.md"
EXAMPLE = DOCS.parent / "examples" / "own-repository"
REAL = find_block(PAGE, "# tests/test_real_model.py")


@dataclass(frozen=True)
class Exporting:
    """A server and a worker of this module.

    Attributes:
        clew: A client of both.
        settings: With these settings commands reach the server and the worker's archive.
    """

    clew: Clew
    settings: dict[str, str]


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


@pytest.fixture(scope="module")
async def exporting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Exporting]:
    """A server that has no other sessions, and a worker whose archive commands can read."""
    store = tmp_path_factory.mktemp("store")
    async with (
        scripted_model(lambda _body: Reply("fine")) as model,
        temporal_server(ui=False) as server,
        serve(
            await Clew.connect(server.address),
            {"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url},
            store=Store.from_url(store.as_uri()),
        ) as clew,
    ):
        yield Exporting(clew, {"address": server.address, "CLEW_STORE": str(store)})


@pytest.mark.slow
async def test_a_recorded_session_is_evaluated(
    exporting: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's loop reads the file of `clew export`, asks the provider, and shows what another version replies."""
    session = await exporting.clew.open("evaluated", model="scripted:any", tools=["add"])
    await session.ask("hello")
    monkeypatch.chdir(tmp_path)
    exported = await run_clew("export", session.id, "session.jsonl", **exporting.settings)
    assert exported.code == 0, exported
    agent = Agent("support", model="openai:gpt-4o", tools=["add"])
    async with scripted_model(lambda _body: Reply(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])) as model:
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-a-test")
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        await run_block(find_block(PAGE, "evaluation.turns"), {"evaluate": evaluate, "support": agent})
        assert len(model.requests) == 1
    assert "add" in capsys.readouterr().out


@pytest.mark.slow
async def test_open_sessions_are_replayed(
    exporting: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a server, and the files of both commands that the page names."""
    session = await exporting.clew.open("replayed", model="scripted:any")
    await session.ask("hello")
    address, more = exporting.settings["address"], tmp_path / "saved" / "more"
    more.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    saved = await run_clew("audit", session.id, "--save", "saved/session-2.jsonl", **exporting.settings)
    assert saved.code == 0, saved
    history = await run_temporal(exporting.clew, "workflow", "show", "--output", "json", "--workflow-id", "replayed")
    for file in (tmp_path / "saved" / "session-1.json", more / "session-3.json"):
        file.write_text(history)
    counts: list[int] = []

    async def replay_and_count(*sources: Any, **options: Any) -> None:
        counts.append(await replay(*sources, **options))

    async def is_listed() -> bool:
        return (await exporting.clew.temporal.count_workflows("WorkflowId = 'replayed'")).count == 1

    await wait_until(is_listed)
    names: dict[str, Any] = {"Clew": Clew, "replay": replay_and_count}
    await run_block(find_block(PAGE, "open_ones").replace("temporal.staging:7233", address), names)
    await names["test_open_sessions_continue"]()
    of_server, of_files = counts
    assert (of_server >= 1, of_files) == (True, 3)
