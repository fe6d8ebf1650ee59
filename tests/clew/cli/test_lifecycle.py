"""`fork`, `hibernate` and `delete`, and reading sessions that exist only in the archive."""

from __future__ import annotations

import asyncio

from tests.support.command_line import read_error, run_clew
from tests.support.rolling import make_id
from tests.support.stack import Stack


async def test_a_session_is_forked(stack: Stack) -> None:
    """The receipt names the new session and the last entry that both have."""
    session, address, fork_id = await stack.open("fine"), stack.server.address, make_id()
    await session.ask("one")
    await session.ask("two")
    options = ("--at", "3", "--as", fork_id, "--metadata", "branch=alt", "--metadata", "why=a=b")
    forked = await run_clew("fork", session.id, *options, "--json", address=address)
    assert (forked.code, forked.json) == (0, {"session_id": fork_id, "fork_seq": 3})
    (origin,) = await stack.clew.session(fork_id).entries(kind="fork")
    assert origin.payload["metadata"] == {"branch": "alt", "why": "a=b"}
    copied, wrong, noted = await asyncio.gather(
        run_clew("fork", session.id, "--json", address=address),
        run_clew("fork", session.id, "--at", "99", address=address),
        run_clew("fork", session.id, "--metadata", "nothing", address=address),
    )
    assert copied.json["fork_seq"] == 7
    assert read_error(wrong) == (1, "invalid_input")
    assert noted.code == 2


async def test_a_session_is_put_away_read_and_deleted(stack: Stack) -> None:
    """A hibernated session can be read; a session is deleted only after a confirmation."""
    session, address = await stack.open("fine", system_prompt="Be brief."), stack.server.address
    await session.ask("hi")
    asleep = await run_clew("hibernate", session.id, "--reason", "night", address=address)
    assert (asleep.code, asleep.out) == (0, "the session hibernates; all entries up to 4 are archived\n")
    transcript, context, listed = await asyncio.gather(
        run_clew("transcript", session.id, "--json", address=address),
        run_clew("context", session.id, "--call", "call-1", "--json", address=address),
        run_clew("entries", session.id, "--json", address=address),
    )
    assert [message["content"] for message in transcript.json["messages"]] == ["hi", "fine"]
    assert [message["role"] for message in context.json["messages"]] == ["system", "user"]
    assert [entry["seq"] for entry in listed.json["entries"]] == [0, 1, 2, 3, 4]
    declined = await run_clew("delete", session.id, stdin="n\n", address=address)
    assert declined.code == 1
    assert "Delete session" in declined.err
    assert len(await session.entries()) == 5
    deleted = await run_clew("delete", session.id, "--yes", "--json", address=address)
    assert (deleted.code, deleted.json) == (0, {"deleted_segments": 1, "deleted_subagents": 0})
    gone = await run_clew("entries", session.id, address=address)
    assert read_error(gone) == (1, "not_found")


async def test_a_lane_is_emptied(stack: Stack) -> None:
    """`reset` empties the context; the thread keeps the messages."""
    session, address = await stack.open("fine"), stack.server.address
    await session.ask("hi")
    emptied = await run_clew("reset", session.id, "--op-id", "o-1", address=address)
    assert (emptied.code, emptied.out) == (0, "operation o-1 is applied, as entry 4\n")
    assert (await session.context()).messages == []
    assert len(await session.transcript()) == 2
