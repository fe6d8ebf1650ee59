"""The commands about a session as a whole: fork, hibernate, delete; and reading what is in an archive alone."""

from __future__ import annotations

import asyncio

from tests.support.command_line import clew, error_of
from tests.support.rolling import name
from tests.support.stack import Stack


async def test_a_session_is_forked(stack: Stack) -> None:
    """The receipt names the new session and the entry up to which both are the same."""
    session, address, fork_id = await stack.open("fine"), stack.server.address, name()
    await session.ask("one")
    await session.ask("two")
    options = ("--at", "3", "--as", fork_id, "--metadata", "branch=alt", "--metadata", "why=a=b")
    forked = await clew("fork", session.id, *options, "--json", address=address)
    assert (forked.code, forked.json) == (0, {"session_id": fork_id, "fork_seq": 3})
    (origin,) = await stack.clew.session(fork_id).entries(kind="fork")
    assert origin.payload["metadata"] == {"branch": "alt", "why": "a=b"}
    whole, wrong, noted = await asyncio.gather(
        clew("fork", session.id, "--json", address=address),
        clew("fork", session.id, "--at", "99", address=address),
        clew("fork", session.id, "--metadata", "nothing", address=address),
    )
    assert whole.json["fork_seq"] == 7
    assert error_of(wrong) == (1, "invalid_input")
    assert noted.code == 2


async def test_a_session_is_put_away_read_and_deleted(stack: Stack) -> None:
    """What hibernates is still read; what is deleted is gone, and only who says so deletes it."""
    session, address = await stack.open("fine", system_prompt="Be brief."), stack.server.address
    await session.ask("hi")
    asleep = await clew("hibernate", session.id, "--reason", "night", address=address)
    assert (asleep.code, asleep.out) == (0, "the session hibernates; all entries up to 4 are archived\n")
    said, shown, listed = await asyncio.gather(
        clew("transcript", session.id, "--json", address=address),
        clew("context", session.id, "--call", "call-1", "--json", address=address),
        clew("entries", session.id, "--json", address=address),
    )
    assert [message["content"] for message in said.json["messages"]] == ["hi", "fine"]
    assert [message["role"] for message in shown.json["messages"]] == ["system", "user"]
    assert [entry["seq"] for entry in listed.json["entries"]] == [0, 1, 2, 3, 4]
    kept = await clew("delete", session.id, stdin="n\n", address=address)
    assert kept.code == 1
    assert "Delete session" in kept.err
    assert len(await session.entries()) == 5
    deleted = await clew("delete", session.id, "--yes", "--json", address=address)
    assert (deleted.code, deleted.json) == (0, {"deleted_segments": 1})
    gone = await clew("entries", session.id, address=address)
    assert error_of(gone) == (1, "not_found")


async def test_a_lane_is_emptied(stack: Stack) -> None:
    """`reset` leaves nothing in the context, and everything in the thread."""
    session, address = await stack.open("fine"), stack.server.address
    await session.ask("hi")
    emptied = await clew("reset", session.id, "--op-id", "o-1", address=address)
    assert (emptied.code, emptied.out) == (0, "operation o-1 is applied, as entry 4\n")
    assert (await session.context()).messages == []
    assert len(await session.transcript()) == 2
