"""`clew dev` and `clew codec-server`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from clew import Clew
from clew.local import Reply, ToolCall, scripted_model, temporal_server
from clew.local.child import free_ports
from tests.support.browser import open_browser
from tests.support.command_line import make_environment, run_clew
from tests.support.encrypted import make_encryption, run_worker, write_keys
from tests.support.stack import Stack
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 60
TOOLS = """
from clew import tool

@tool
def find_price() -> str:
    "The price."
    return "%s"
"""


class Running:
    """A running `clew dev`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def wait_for(self, text: str) -> None:
        """Read lines up to the next one that holds a text."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                assert self.process.stdout is not None
                line = (await self.process.stdout.readline()).decode()
                assert line, f"{text!r} does not appear in {self.lines}"
                self.lines.append(line)
                if text in line:
                    return

    def list_children(self) -> dict[int, str]:
        """List the processes that it has started: pid and command."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        pids = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
        return {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}

    async def interrupt(self) -> int:
        """Send what Ctrl-C sends; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        await self.wait_for("stopped")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def dev(folder: Path, ports: Sequence[int], model_url: str) -> AsyncIterator[Running]:
    """Run `clew dev` in a folder with `my_tools.py`. The ports are the server's, the UI's and the studio's."""
    options = zip(("--port", "--ui-port", "--studio-port"), map(str, ports), strict=True)
    arguments = ("--tools", "my_tools", "--model", "scripted:any", *chain.from_iterable(options))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "clew.cli", "dev", *arguments),
        cwd=folder,
        env=make_environment(CLEW_PROVIDER_SCRIPTED_BASE_URL=model_url, PYTHONDONTWRITEBYTECODE="1"),
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def read_price(body: dict[str, Any]) -> Reply:
    """Call the tool, then answer with its result."""
    newest = body["messages"][-1]
    return Reply(newest["content"]) if newest["role"] == "tool" else Reply(tool_calls=(ToolCall("find_price", {}),))


async def wait_until_gone(pids: list[int]) -> None:
    """Wait until processes have ended. They are not children of this one."""
    await wait_until(lambda: not list_existing(pids))


def list_existing(pids: list[int]) -> list[int]:
    """List those of the processes that still exist."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's /proc")
async def test_the_worker_follows_the_code_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """A saved tool is used by the next call; with a syntax error the old code serves until it is mended.

    Ctrl-C ends every process, and the session continues the next time.
    """
    port, ui_port, studio_port = ports = free_ports(3)
    code = tmp_path / "my_tools.py"
    code.write_text(TOOLS % "one")
    async with scripted_model(read_price) as model:
        async with dev(tmp_path, ports, model.base_url) as running:
            await running.wait_for("ready\n")
            assert f"UI at http://127.0.0.1:{ui_port}\n" in running.lines
            (studio,) = [line for line in running.lines if line.startswith("studio at ")]
            assert f"http://127.0.0.1:{studio_port}/studio/#key=" in studio
            clew = await Clew.connect(f"127.0.0.1:{port}")
            session = await clew.open("s-1", model="scripted:any", tools=["find_price"])
            assert await session.ask("?") == "one"

            first = [pid for pid, command in running.list_children().items() if "clew.worker" in command]
            code.write_text("def unfinished(:\n")
            await running.wait_for("SyntaxError: invalid syntax (my_tools.py, line 1)")
            await running.wait_for("the worker before it still serves")
            assert await session.ask("?") == "one"

            code.write_text(TOOLS % "two")
            await running.wait_for("ready with the new code")
            await wait_until_gone(first)
            assert await session.ask("?") == "two"

            children = [*running.list_children()]
            assert len(children) == 3, "the server, the studio and the worker"
            assert await running.interrupt() == 0
            await wait_until_gone(children)

        async with dev(tmp_path, ports, model.base_url) as running:
            await running.wait_for("ready\n")
            assert studio in running.lines, "a bookmark works the next time"
            async with httpx.AsyncClient(trust_env=False) as http:
                headers = {"Authorization": f"Bearer {studio.strip().rpartition('=')[2]}"}
                listed = await http.get(f"http://127.0.0.1:{studio_port}/v1/sessions/s-1", headers=headers)
            assert listed.json()["status"] == "idle"
            clew = await Clew.connect(f"127.0.0.1:{port}")
            assert await clew.session("s-1").ask("?") == "two"
            assert len(await clew.session("s-1").transcript()) == 16
            assert await running.interrupt() == 0


async def test_a_port_that_is_taken_is_one_line() -> None:
    """The line names the port, with --json as an object; nothing has been started."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        command = ("dev", "--ephemeral", "--port", str(port), "--model", "scripted:any")
        settings = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": "http://127.0.0.1:9/v1"}
        ended, in_json = await asyncio.gather(
            run_clew(*command, **settings), run_clew(*command, "--json", **settings)
        )
    assert ended.code == 1
    started, failed = in_json.lines
    assert (in_json.code, in_json.err, started["message"]) == (1, "", "starting the Temporal server …")
    assert f"port {port} is taken" in failed["error"]["message"]
    assert f"port {port} is taken" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("openai:gpt-4o", "set OPENAI_API_KEY"),
        ("gpt-4o", "for example openai:gpt-4o, not 'gpt-4o'; this worker has "),
        ("nobody:x", "no provider 'nobody'"),
    ],
)
async def test_a_model_that_cannot_be_called_is_refused_at_the_start(model: str, reason: str) -> None:
    """The provider's key is missing, or the name is malformed: exit code 2 and the reason."""
    hidden = {name: "" for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL") if name in os.environ}
    ended = await run_clew("dev", "--model", model, **hidden)
    assert ended.code == 2
    assert reason in " ".join(ended.err.replace("│", " ").split())


TOKEN = "a-token-of-many-characters"


async def test_a_server_that_cannot_protect_anything_does_not_start() -> None:
    """It needs keys and a token, and repeats neither."""
    without_keys = await run_clew("codec-server", CLEW_CODEC_TOKEN=TOKEN)
    assert "misconfigured: CLEW_ENCRYPTION_KEYS is not set" in without_keys.err
    keys = write_keys("k1")
    without_token = await run_clew("codec-server", CLEW_ENCRYPTION_KEYS=keys, CLEW_CODEC_TOKEN="short")
    assert "misconfigured: CLEW_CODEC_TOKEN needs at least 16 characters" in without_token.err
    assert keys.partition(":")[2] not in without_keys.err + without_token.err
    assert {without_keys.code, without_token.code} == {2}


@asynccontextmanager
async def run_codec_server(origin: str) -> AsyncIterator[str]:
    """Run the command. Yields the server's address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "clew.cli", "codec-server", "--port", "0", "--origin", origin),
        env={**os.environ, "CLEW_ENCRYPTION_KEYS": write_keys("k1"), "CLEW_CODEC_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        ready = (await process.stdout.readline()).decode()
        yield ready.partition("ready: ")[2].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.slow
async def test_a_person_with_the_token_reads_the_texts_in_the_ui(stack: Stack) -> None:
    """The page takes the token once; before that the UI shows nothing of the conversation."""
    async with (
        temporal_server() as server,
        run_worker(replace(stack, server=server), make_encryption("k1")) as encrypted,
        run_codec_server(server.ui_address or "") as codec_server,
        open_browser() as browser,
    ):
        session = await encrypted.open("an answer about Aurich", system_prompt="be kind")
        await session.ask("a question about Leer")
        context = await browser.new_context(viewport={"width": 1400, "height": 900})
        settings = {"endpoint": f'"{codec_server}"', "includeCredentials": "true"}
        settings["overrideRemoteCodecConfiguration"] = "true"
        for name, value in settings.items():
            await context.add_init_script(f"localStorage.setItem({name!r}, {value!r})")
        page = await context.new_page()
        timeline = f"{server.ui_workflow(session.id)}/{await find_run_id(encrypted, session.id)}/timeline"

        await page.goto(timeline)
        await expect(page.get_by_text("AgentSession").first).to_be_visible()
        await expect(page.get_by_text("be kind")).to_have_count(0)

        await page.goto(codec_server)
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button").click()
        await expect(page.get_by_role("status")).to_contain_text("can decode now")

        await page.goto(timeline)
        await expect(page.get_by_text("be kind").first).to_be_visible()


async def find_run_id(stack: Stack, session_id: str) -> str:
    """Return the id of a session's workflow run."""
    described = await stack.clew.temporal.get_workflow_handle(session_id).describe()
    return described.run_id
