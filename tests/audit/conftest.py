"""A worker whose sessions roll over often, the archive that it writes, and sessions of every shape."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew import Clew, Session
from clew_activities.archive import Archive
from deploy.local import Reply, ToolCall
from tests.conftest import World, last
from tests.histories.scenarios import control
from tests.histories.scenarios import script as controlled
from tests.rolling import name, rolling


@pytest.fixture(scope="session")
async def clew(world: World) -> AsyncIterator[Clew]:
    """A client whose worker's sessions roll over after some 80 events."""
    async with rolling(world) as clew:
        yield clew


@pytest.fixture(scope="session")
def archive(world: World) -> Archive:
    """The archive that the worker writes."""
    return Archive(world.store, "default")


@pytest.fixture(scope="session")
async def lived(world: World, clew: Clew) -> Session:
    """A session with many runs, tools, lanes, steering, a cancel, approvals, a hibernation; it is open."""
    model = world.model(controlled)
    session = await clew.open(name(), model=model, tools=["add"], system_prompt="Be brief.")
    for turn in range(12):
        await session.ask(f"turn {turn}")
    await session.ask("use tools")
    await session.hibernate()
    await control(await clew.open(session.id, model=model))
    session = await clew.open(session.id, model=model)
    for turn in range(3):
        await session.ask(f"last turn {turn}")
    return session


def hanging(body: dict[str, Any]) -> Reply:
    """A model that counts what it reads, and calls a tool that never ends when it is told to hang."""
    if last(body)["role"] == "user" and last(body)["content"] == "hang":
        return Reply(tool_calls=(ToolCall("wait_for", {"gate": f"never-{uuid.uuid4().hex}"}),))
    return Reply(f"I read {len(body['messages'])}")


async def hung(session: Session) -> None:
    """Let a session wait for a tool, with a message in its queue and an input that nobody has read."""
    await session.message("hang", request_id="hangs")
    while (await session.status()).status != "awaiting_tools":  # noqa: ASYNC110 - only a query tells
        await asyncio.sleep(0.02)
    await session.message("wait", request_id="waits", on_busy="queue")
    await session.steer("hurry", input_id="hurries")


async def live_entries(session: Session) -> list[dict[str, Any]]:
    """What a session holds of its thread."""
    first = (await session.status()).first_live_seq
    return [entry.as_json() for entry in await session.entries(from_seq=first)]
