"""A session that has ended: its word in the status, in lists and in errors, and what continues it."""

from __future__ import annotations

import asyncio

import pytest

from clew import Session
from clew.errors import Closed, Interrupted
from tests.support.command_line import read_error, run_clew
from tests.support.scripts import PausedModel
from tests.support.stack import Stack
from tests.support.waiting import wait_until


async def end(session: Session, how: str) -> None:
    match how:
        case "hibernated":
            await session.hibernate()
        case "closed":
            await session.close()
        case _:
            await session._handle.workflow.terminate("gone")
    await asyncio.gather(session._handle.workflow.result(), return_exceptions=True)


@pytest.mark.parametrize(
    ("how", "remedy"),
    [
        ("hibernated", "clew ask"),
        pytest.param("closed", "clew ask", marks=pytest.mark.slow),
        ("interrupted", "clew recover"),
    ],
)
async def test_every_end_has_its_word_and_says_what_continues_the_session(
    stack: Stack, how: str, remedy: str
) -> None:
    """In the status, in the lists, and in the errors of everything that needs a session that runs."""
    session, address = await stack.open("fine"), stack.server.address
    await session.ask("one")
    await end(session, how)
    status = await session.status()
    assert (status.status, status.closed) == (how, True)
    shown = await run_clew("status", session.id, address=address)
    assert f"status: {how}: `{remedy} {session.id}" in shown.out

    async def is_listed() -> bool:
        return [one.status async for one in stack.clew.sessions() if one.session_id == session.id] == [how]

    await wait_until(is_listed)
    words = {"hibernated": "hibernates", "closed": "is closed", "interrupted": "was interrupted"}
    expected = Interrupted if how == "interrupted" else Closed
    for call in (session.ask("two"), session.cancel(), session.configure(system_prompt="Be kind.")):
        with pytest.raises(Closed, match=words[how]) as refused:
            await call
        assert type(refused.value) is expected
        assert f"`{remedy} {session.id}" in str(refused.value)
    steered = await run_clew("steer", session.id, "more", address=address)
    assert read_error(steered) == (1, expected.type)
    asked = await run_clew("ask", session.id, "two", address=address)
    assert (asked.code, asked.out) == ((1, "") if how == "interrupted" else (0, "fine\n"))
    if how == "interrupted":
        assert read_error(asked) == (1, "interrupted")


async def test_an_answer_that_is_awaited_says_that_the_session_was_interrupted(stack: Stack) -> None:
    """It ends the wait."""
    model = PausedModel()
    session = await stack.open(model)
    request = await session.message("one")
    await model.called.wait()
    waiting = asyncio.create_task(request.answer())
    await asyncio.sleep(0)
    await session._handle.workflow.terminate("gone")
    with pytest.raises(Interrupted, match="clew recover"):
        await waiting
    model.free.set()
