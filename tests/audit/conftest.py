"""A worker whose sessions roll over often, the archive that it writes, and sessions of every shape."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clew import Clew, Session
from clew_activities.archive import Archive
from tests.support.archives import ArchiveInUse
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.scenarios import control
from tests.support.scenarios import reply_as_scenario as controlled
from tests.support.stack import Stack


@pytest.fixture(scope="session")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    """A client whose worker's sessions roll over after some 80 events."""
    async with run_rolling_worker(stack) as clew:
        yield clew


@pytest.fixture(scope="session")
def archive(stack: Stack) -> Archive:
    """The archive that the worker writes."""
    return Archive(stack.store, "default")


@pytest.fixture
async def archive_in_use(stack: Stack, clew: Clew) -> ArchiveInUse:
    """The archive of a session that has hibernated once, and has since been asked again."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.hibernate()
    session = await clew.open(session.id)
    await session.ask("go on")
    return ArchiveInUse(stack.store, session)


@pytest.fixture(scope="session")
async def long_session(stack: Stack, clew: Clew) -> Session:
    """A session with many runs, tools, lanes, steering, a cancel, approvals, a hibernation; it is open.

    Some messages have refs of the caller's own, and one has no tools.
    """
    model = stack.add_model(controlled)
    session = await clew.open(make_id(), model=model, tools=["add"], system_prompt="Be brief.")
    await session.ask("turn 0", tools=[], refs={"mail": "m-0"})
    for turn in range(1, 12):
        await session.ask(f"turn {turn}")
    await session.ask("use tools", tools=["add"], refs={"mail": "m-12"})
    await session.hibernate()
    await control(await clew.open(session.id, model=model))
    session = await clew.open(session.id, model=model)
    for turn in range(3):
        await session.ask(f"last turn {turn}")
    return session
