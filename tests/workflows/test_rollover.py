"""Sessions that outlive the runs of their workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clew import Clew, ContextPolicy
from deploy.local import Reply
from tests.conftest import World
from tests.rolling import name, rolling, runs_of


@pytest.fixture(scope="module")
async def clew(world: World) -> AsyncIterator[Clew]:
    async with rolling(world) as clew:
        yield clew


async def test_a_session_goes_on_in_new_runs_of_its_workflow(world: World, clew: Clew) -> None:
    """Seqs go on without a gap, the model sees what it would have seen, known requests are known."""
    model = world.model(lambda body: Reply(f"I read {len(body['messages'])} messages"))
    session = await clew.open(name(), model=model, context_policy=ContextPolicy(max_input_tokens=2300))
    for turn in range(60):
        said = await session.ask(f"turn {turn}")
        assert said.startswith("I read")
    assert len(await runs_of(clew, session.id)) > 2
    status = await session.status()
    assert status.first_live_seq > 0
    assert status.rev == 1 + 3 * 60
    live = await session.entries(from_seq=status.first_live_seq)
    assert [entry.seq for entry in live] == list(range(status.first_live_seq, status.rev))
    first = await session.message("turn 0", request_id="again")
    assert (await first.result()).status == "completed"


async def test_a_hibernating_session_is_taken_up_again(world: World, clew: Clew) -> None:
    """Its thread goes on where it was, its configuration stands, and what was said is in the context."""
    model = world.model(lambda body: Reply(f"{len(body['messages'])} messages"))
    session = await clew.open(name(), model=model, system_prompt="Be brief.", tools=["add"])
    assert await session.ask("one") == "2 messages"
    receipt = await session.hibernate()
    again = await clew.open(session.id, model=model)
    assert await again.ask("two") == "4 messages"
    entries = await again.entries(from_seq=receipt.last_seq + 1)
    assert [entry.seq for entry in entries] == [receipt.last_seq + n for n in (1, 2, 3)]
    assert (await again.status()).usage.model_calls == 2
