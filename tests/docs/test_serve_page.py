"""The page about the HTTP service: its commands work with curl, and its file of keys is one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from clew.serve.access import read_keys
from docs.generate import DOCS
from tests.support.page_code import find_block
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack

PAGE = (DOCS / "serve.md").read_text(encoding="utf-8")


async def test_the_commands_open_a_session_and_send_a_message(stack: Stack) -> None:
    """The answer has the fields of the page. Sent again with the same key, the message has no second effect."""
    if (bash := shutil.which("bash")) is None or shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    shown = json.loads(find_block("serve.md", "request_id", "json"))
    async with run_shop(stack, "support") as served:
        commands = find_block("serve.md", "curl -X PUT", "").replace(
            "localhost:8080", served.address.removeprefix("http://")
        )
        for _ in range(2):
            process = await asyncio.create_subprocess_exec(
                *(bash, "-c", commands), env={**os.environ, "KEY": served.token}, stdout=PIPE, stderr=PIPE
            )
            printed, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()
            answer = json.loads("{" + printed.decode().rpartition("}{")[2])
            assert {name: answer[name] for name in ("session_id", "request_id", "status")} == {
                name: shown[name] for name in ("session_id", "request_id", "status")
            }
            assert answer["answer"] == "You said Please refund order 1234."
        session = served.app.state.clew.session(served.scope("chat-1"))
        assert len([entry async for entry in session.read(kind="run")]) == 1


def test_the_file_of_keys(tmp_path: Path) -> None:
    """It has one key, with every field of the page."""
    file = tmp_path / "keys.toml"
    file.write_text(find_block("serve.md", "[[key]]", "toml"))
    (key,) = read_keys(file)
    assert (key.tenant, key.agents, key.max_open_sessions) == ("acme", ("support",), 1000)
