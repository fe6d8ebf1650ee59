"""`make chat` needs nothing but the checkout, and the conversation goes on the next time."""

import shlex
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from clew.local.child import free_ports
from clew.local.temporal import lock_folder
from deploy.chat import FOLDER, write_resume
from tests.support.processes import ROOT, run_module


async def chat(typed: str, folder: Path, **env: str) -> tuple[int | None, str]:
    return await run_module("deploy.chat", "--folder", str(folder), seconds=90, typed=typed, env=env)


@pytest.mark.slow
async def test_a_conversation_goes_on_the_next_time(tmp_path: Path) -> None:
    """The session is answered by the real model, and still there after everything has been stopped."""
    status, first = await chat("What is a compass?\n", tmp_path)
    assert status == 0, first
    answer = first.strip().splitlines()[-1]
    assert "/workflows/chat" not in answer
    status, second = await chat("/transcript\n", tmp_path)
    assert status == 0, second
    assert "What is a compass?" in second
    assert answer[:40] in second


async def test_the_chat_says_how_it_is_resumed(tmp_path: Path) -> None:
    """`make` takes the command of the usual folder; that of another folder names it."""
    words = shlex.split(write_resume(FOLDER).format(session="s-1", model="local:small"))
    assert words[0] == "make"
    process = await create_subprocess_exec("make", "-n", *words[1:], cwd=ROOT, stdout=PIPE)
    out, _ = await process.communicate()
    assert "-m deploy.chat --session 's-1' --model 'local:small'" in out.decode()
    folder = tmp_path / "a b"
    words = shlex.split(write_resume(folder).format(session="s-1", model="local:small"))
    assert words[1:] == ["-m", "deploy.chat", "--folder", str(folder), "--session", "s-1", "--model", "local:small"]


@pytest.mark.slow
async def test_a_server_of_ones_own_is_used_instead(tmp_path: Path) -> None:
    """Where TEMPORAL_ADDRESS is set nothing is started, and a wrong address is the command's own error."""
    (port,) = free_ports(1)
    status, shown = await chat("hello\n", tmp_path, TEMPORAL_ADDRESS=f"127.0.0.1:{port}")
    assert status == 3, shown
    assert "Starting" not in shown
    assert str(port) in shown


@pytest.mark.slow
async def test_two_chats_never_share_a_database(tmp_path: Path) -> None:
    """A second `make chat` is refused, so that it does not damage the first one's file."""
    with lock_folder(tmp_path):
        status, shown = await chat("hello\n", tmp_path)
    assert status == 1
    assert "another process serves" in shown
