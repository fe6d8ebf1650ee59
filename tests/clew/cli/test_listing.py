"""`clew sessions`, `clew top` and `clew setup-namespace`."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from clew.cli.listing import format_sessions
from clew.local import temporal_server
from clew_workflows.contract.lists import SessionSummary
from tests.support.command_line import open_terminal, run_clew
from tests.support.rolling import make_id
from tests.support.stack import Stack


async def test_sessions_of_a_user(stack: Stack) -> None:
    """A line a session with tabs in a pipe, and JSON; a filter that is not valid is refused."""
    user, address = make_id(), stack.server.address
    session = await stack.open(metadata={"user": user, "title": "parcel\t\x1b[31m"})
    await session.ask("hello")
    await session.hibernate()
    listed = await run_clew("sessions", "--user", user, "--status", "hibernated", "--since", "today", address=address)
    (row,) = listed.out.splitlines()
    assert row.split("\t")[:2] == ["hibernated", session.id]
    assert "\x1b" not in row
    as_json = await run_clew("sessions", "--user", user, "--json", address=address)
    (summary,) = as_json.json["sessions"]
    assert (summary["session_id"], summary["user"], summary["archived"]) == (session.id, user, True)
    refused = await run_clew("sessions", "--since", "yesterday", "--json", address=address)
    assert (refused.code, refused.json["error"]["type"]) == (1, "invalid_input")


async def test_a_namespace_is_set_up_once() -> None:
    """The first run registers all, the second none; without them a filter names the command."""
    async with temporal_server(ui=False, search_attributes={}) as server:
        first = await run_clew("setup-namespace", "--json", address=server.address)
        assert (first.code, len(first.json["registered"]), first.json["present"]) == (0, 9, [])
        again = await run_clew("setup-namespace", address=server.address)
        assert (again.code, again.out.partition(":")[0]) == (0, "registered before")


NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def render(rows: list[SessionSummary], height: int, **options: Any) -> list[str]:
    """Format sessions as the lines of a terminal of 100 columns."""
    out = io.StringIO()
    Console(file=out, width=100, height=height).print(format_sessions(rows, 100, height, at=NOON, **options))
    return out.getvalue().rstrip("\n").split("\n")


def test_the_sessions_fit_the_terminal() -> None:
    """The first line has the totals; sessions that do not fit are counted; nothing controls the terminal."""
    rows = [SessionSummary(session_id=f"s{number}", status="working", title="\x1b[2Jx" * 30) for number in range(50)]
    rows.append(SessionSummary(session_id="odd"))
    lines = render(rows, 20)
    assert lines[0].startswith("51 live sessions: 50 working, 1 unknown  12:00:00  q ends")
    assert len(lines) <= 20
    assert lines[-1] == "37 more"
    assert not [line for line in lines if "\x1b" in line or len(line) > 100]


def test_a_problem_is_shown_beside_the_last_table() -> None:
    """The server may be gone for a while."""
    assert render([], 20, problem="no answer")[0] == "0 live sessions  12:00:00  q ends  no answer"


async def test_live_sessions_are_watched(stack: Stack) -> None:
    """On a terminal a table until q; in a pipe and with --json the sessions once."""
    session = await stack.open("fine")
    await session.ask("Hello")
    async with open_terminal("top", address=stack.server.address) as screen:
        await screen.wait_until_shown(session.id[:12])
        await screen.wait_until_shown("live session")
        screen.type("q")
        assert await screen.wait_for_end() == 0
    printed = await run_clew("top", "--json", address=stack.server.address)
    assert (printed.code, printed.err) == (0, "")
    assert session.id in [summary["session_id"] for summary in printed.json["sessions"]]
    lines = (await run_clew("top", address=stack.server.address)).out.splitlines()
    assert session.id in [line.split("\t")[1] for line in lines]
