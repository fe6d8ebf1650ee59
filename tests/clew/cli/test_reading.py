"""`clew follow`: a session's events in a pipe, as JSON and on a terminal."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from clew.local import Reply, ToolCall
from tests.support.command_line import open_terminal, run_clew
from tests.support.stack import Stack, get_last_message


def add_once(body: dict[str, Any]) -> Reply:
    """A model that adds, and then answers in two paragraphs."""
    if get_last_message(body)["role"] == "user":
        return Reply("", (ToolCall("add", {"a": 40, "b": 2}),))
    return Reply("It is **42**.\n\nThat is all.")


async def test_events_in_a_pipe(stack: Stack) -> None:
    """An event a line until the session is closed: as text, or with --json as the client yields it."""
    session = await stack.open(add_once, tools=["add"])
    await session.ask("40 + 2?")
    await session.close()
    events = [event async for event in session.follow(0)]
    as_json, as_text = await asyncio.gather(
        run_clew("follow", session.id, "--from-seq", "0", "--json", address=stack.server.address),
        run_clew("follow", session.id, "--from", "0", address=stack.server.address),
    )
    assert (as_json.code, as_json.err, as_json.lines) == (0, "", [event.as_dict() for event in events])
    rows = [line.split("\t") for line in as_text.out.splitlines()]
    assert [row[0] for row in rows if row[0]] == [str(entry.seq) for entry in await session.entries()]
    assert {len(row) for row in rows} == {6}
    assert rows[-1][2:] == ["status", "", "", 'status="closed"']
    assert "\x1b" not in as_text.out


async def test_a_session_is_watched(stack: Stack) -> None:
    """On a terminal: messages, calls with their results, and the reply's blocks, each once."""
    session = await stack.open(add_once, tools=["add"])
    async with open_terminal("follow", session.id, "--from-seq", "0", address=stack.server.address) as screen:
        await session.ask("40 + 2?")
        await screen.wait_for("> 40 + 2?")
        await screen.wait_for("→ add(a=40, b=2)")
        await screen.wait_for("← 42")
        await screen.wait_for("It is 42.")
        await screen.wait_for("That is all.")
        await session.close()
        await screen.wait_for("the session is closed")
        assert await screen.wait_for_end() == 0
    assert screen.screen.count("It is 42.") == 1


async def test_a_waiting_call_is_told_with_its_command(stack: Stack) -> None:
    """Nothing can be typed there: not the keys and commands of a chat, but a command of `clew` decides the call."""
    session = await stack.open(add_once, tools=["add"], require_approval=["add"])
    address = stack.server.address
    async with open_terminal("follow", session.id, "--from-seq", "0", "--address", address) as screen:
        await session.message("40 + 2?")
        await screen.wait_until_shown("or deny")
        (command,) = set(re.findall("`clew (.+?)`", screen.screen))
        assert "y yes" not in screen.screen
        assert (await run_clew(*command.split())).code == 0
        await screen.wait_until_shown("It is 42.")
