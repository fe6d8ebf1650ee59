"""`make chat` needs nothing but the checkout, and the conversation goes on the next time."""

from pathlib import Path

import pytest

from clew.local.child import free_ports
from clew.local.persistence import lock_folder
from tests.support.processes import run_module


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
