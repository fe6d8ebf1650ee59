"""The commands on a terminal: growing replies, a chat, and no control sequences from models."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import pytest

from clew.local import Reply, ToolCall
from tests.support import toolbox
from tests.support.command_line import open_terminal, run_clew
from tests.support.stack import Stack, get_last_message

LONG = " ".join(f"word{number}" for number in range(30))


def paced(_body: dict[str, Any]) -> Reply:
    """A model that writes its reply over a second."""
    return Reply(LONG, tokens_per_second=30)


async def test_a_reply_is_shown_as_it_grows(stack: Stack) -> None:
    """The beginning is on the screen before the end is written; the whole reply is printed once."""
    session = await stack.open(paced)
    async with open_terminal("ask", session.id, "Count", address=stack.server.address) as screen:
        await screen.wait_for("word3")
        assert "word29" not in screen.screen
        await screen.wait_for("word29")
        assert await screen.wait_for_end() == 0
    assert screen.screen.count("word3 ") == 1
    assert LONG in screen.screen


async def test_tools_are_shown_as_they_happen(stack: Stack) -> None:
    """A tool call is shown while the tool runs, its result before the answer."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply("Let me see.", (ToolCall("wait_for", {"gate": "shown"}),))
        return Reply("It was open.")

    session = await stack.open(script, tools=["wait_for"])
    async with open_terminal("ask", session.id, "Is it open?", address=stack.server.address) as screen:
        await screen.wait_for("Let me see.\n")
        await screen.wait_for('→ wait_for(gate="shown")')
        toolbox.get_gate("shown").set()
        await screen.wait_for("← shown is open\n")
        await screen.wait_for("It was open.\n")
        assert await screen.wait_for_end() == 0


@pytest.mark.slow
async def test_a_conversation(stack: Stack) -> None:
    """A real terminal: a chat opens a session, Ctrl-C cancels and ends no chat, Ctrl-D leaves; it is resumed."""
    release = asyncio.Event()

    async def script(body: dict[str, Any]) -> Reply:
        content = get_last_message(body)["content"]
        if content == "fail":
            return Reply("no", status=HTTPStatus.BAD_REQUEST)
        if content == "slowly":
            await release.wait()
        return Reply(f"[b]You said {content}[/b]")

    model, session_id = stack.add_model(script), "opened-by-hand"
    async with open_terminal("chat", session_id, "--model", model, address=stack.server.address) as screen:
        await screen.wait_until_shown(f"session {session_id} · {model} · new")
        await screen.wait_until_shown("· idle")
        screen.type("hello\r")
        await screen.wait_until_shown("[b]You said hello[/b]")
        screen.type("fail\r")
        await screen.wait_until_shown("bad_request: no")
        screen.type("slowly\r")
        await screen.wait_until_shown("waiting for the model")
        screen.type("\x03")
        await screen.wait_until_shown("cancelled")
        screen.type("\x03")
        await screen.wait_until_shown("nothing is running")
        screen.resize(columns=40)
        screen.type("\x1b[200~a line\nand another\x1b[201~")
        await screen.wait_until_shown("another")
        screen.type("\r")
        await screen.wait_until_shown("You said a line")
        assert await screen.leave() == 0
        assert f"`clew chat {session_id} --model {model}`" in screen.screen
    assert "Traceback" not in screen.screen
    async with open_terminal("chat", session_id, address=stack.server.address) as screen:
        await screen.wait_until_shown("resumed, ")
        await screen.wait_until_shown("slowly")
        await screen.wait_until_shown("[b]You said a line")
        assert await screen.leave() == 0


async def test_what_a_model_writes_is_shown_and_not_obeyed(stack: Stack) -> None:
    """No escape sequence, control character or markup from a model or a tool reaches the terminal."""
    evil = "[red]a[/] :smile: \x1b[2J\x1b]0;owned\x07\x9b31m\x08\u202eb \x1b"
    session = await stack.open(evil)
    async with open_terminal("ask", session.id, evil, address=stack.server.address) as screen:
        await screen.wait_for("[red]a[/] :smile: b")
        assert await screen.wait_for_end() == 0
    outputs = [screen.raw]
    for command in ("transcript", "context", "entries"):
        async with open_terminal(command, session.id, address=stack.server.address) as screen:
            assert await screen.wait_for_end() == 0
            await screen.wait_for("[red]a[/] :smile: b")
        outputs.append(screen.raw)
    for raw in outputs:
        assert not [sign for sign in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\x08", "\u202e") if sign in raw]


async def test_tables_on_a_terminal(stack: Stack) -> None:
    """Each entry is one line; JSON is the same document, indented."""
    session = await stack.open("y" * 400)
    await session.ask("x\n" * 200)
    async with open_terminal("entries", session.id, address=stack.server.address) as screen:
        await screen.wait_for("seq  at (UTC)")
        assert await screen.wait_for_end() == 0
    rows = [line for line in screen.screen.splitlines() if line.strip()]
    assert [len(row) <= 100 for row in rows] == [True] * (4 + 2)
    async with open_terminal("status", session.id, "--json", address=stack.server.address) as screen:
        assert await screen.wait_for_end() == 0
        await screen.wait_for("\n}\n")
    piped = await run_clew("status", session.id, "--json", address=stack.server.address)
    assert screen.screen.startswith('{\n  "session_id"')
    assert json.loads(screen.screen) == piped.json
