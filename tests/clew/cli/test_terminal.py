"""The commands on a terminal: growing replies, a chat, and no control sequences from models."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

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


async def test_a_conversation(stack: Stack) -> None:
    """Messages, slash commands, Ctrl-C and /wait, Ctrl-D; the next chat resumes the session."""
    release = asyncio.Event()

    async def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["content"] == "slowly":
            await release.wait()
        return Reply(f"[b]You said {get_last_message(body)['content']}[/b]")

    session = await stack.open(script)
    async with open_terminal("chat", session.id, address=stack.server.address) as screen:
        await screen.wait_for(f"session {session.id} · {(await session.status()).model} · resumed, 1 entry")
        await screen.wait_for("> ")
        screen.type("hello\n")
        await screen.wait_for("[b]You said hello[/b]")
        await screen.wait_for("> ")
        screen.type("/status\n")
        await screen.wait_for("│ status   idle")
        await screen.wait_for("> ")
        screen.type("/context\n")
        await screen.wait_for("─ meta ─")
        await screen.wait_for("> ")
        screen.type("/transcript\n")
        await screen.wait_for("assistant  #2")
        await screen.wait_for("> ")
        screen.type("slowly\n")
        await screen.wait_for("waiting for the model")
        screen.type("\x03")
        await screen.wait_for("the request continues")
        await screen.wait_for("> ")
        screen.type("impatient\n")
        await screen.wait_for("busy: request")
        await screen.wait_for("> ")
        screen.type("/wait\n")
        await screen.wait_for("waiting for the model")
        release.set()
        await screen.wait_for("[b]You said slowly[/b]")
        await screen.wait_for("> ")
        screen.type("\x04")
        await screen.wait_for("the session stays")
        assert await screen.wait_for_end() == 0
    assert "Traceback" not in screen.screen
    async with open_terminal("chat", session.id, address=stack.server.address) as screen:
        await screen.wait_for("resumed, 7 entries")
        await screen.wait_for("user  #4\nslowly\n")
        await screen.wait_for("[b]You said slowly[/b]")
        await screen.wait_for("> ")
        assert await screen.interrupt() == 130


async def test_chat_opens_a_session(stack: Stack) -> None:
    """--model starts a session; a failure is printed, and the chat continues."""

    def script(body: dict[str, Any]) -> Reply:
        return (
            Reply("no", status=HTTPStatus.BAD_REQUEST)
            if get_last_message(body)["content"] == "fail"
            else Reply("welcome")
        )

    model = stack.add_model(script)
    async with open_terminal("chat", "opened-by-hand", "--model", model, address=stack.server.address) as screen:
        await screen.wait_for("· new")
        await screen.wait_for("> ")
        screen.type("/nonsense\n")
        await screen.wait_for("unknown command /nonsense")
        await screen.wait_for("> ")
        screen.type("fail\n")
        await screen.wait_for("bad_request: no")
        await screen.wait_for("> ")
        screen.type("hello\n")
        await screen.wait_for("welcome")
        await screen.wait_for("> ")
        screen.type("/quit\n")
        await screen.wait_for("clew chat opened-by-hand")
        assert await screen.wait_for_end() == 0


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
