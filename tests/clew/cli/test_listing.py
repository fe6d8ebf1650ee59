"""`clew sessions` and `clew setup-namespace`."""

from __future__ import annotations

from clew.local import temporal_server
from tests.support.command_line import run_clew
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
