"""Sessions that outlive the runs of their workflow."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from activities.archive import Store
from activities.checkpoints import Keys
from activities.providers import http_client, providers_from_env
from activities.tools import load_tools
from clew import Clew, ContextPolicy, Session
from deploy.local import Reply
from tests import toolbox
from tests.conftest import KEYS, World
from worker import make_worker
from workflows.effects import Thresholds

OFTEN = Thresholds(events=80, bytes=200_000, updates=40, signals=60)


@asynccontextmanager
async def rolling(
    world: World, thresholds: Thresholds = OFTEN, store: Store | None = None, keys: Keys = KEYS
) -> AsyncIterator[Clew]:
    """A worker of its own whose sessions go on in a new run often."""
    clew = Clew(world.clew.temporal, f"queue-{uuid.uuid4().hex}")
    async with http_client() as http:
        worker = make_worker(
            clew.temporal,
            task_queue=clew.task_queue,
            providers=providers_from_env({"CLEW_PROVIDER_SCRIPTED_BASE_URL": world.provider.base_url}),
            tools=load_tools([toolbox.__name__]),
            http=http,
            store=store or world.store,
            keys=keys,
            thresholds=thresholds,
        )
        async with worker:
            yield clew


@pytest.fixture(scope="module")
async def clew(world: World) -> AsyncIterator[Clew]:
    async with rolling(world) as clew:
        yield clew


def name() -> str:
    return f"test-{uuid.uuid4().hex}"


async def runs_of(session: Session) -> int:
    """How many runs of the workflow a session has had so far."""
    client, count = session._client, 0
    run_id = (await client.get_workflow_handle(session.id).describe()).run_id
    while run_id:
        count += 1
        history = await client.get_workflow_handle(session.id, run_id=run_id).fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
    return count


async def test_a_session_goes_on_in_new_runs_of_its_workflow(world: World, clew: Clew) -> None:
    """Seqs go on without a gap, the model sees what it would have seen, known requests are known."""
    model = world.model(lambda body: Reply(f"I read {len(body['messages'])} messages"))
    session = await clew.open(name(), model=model, context_policy=ContextPolicy(max_input_tokens=2300))
    for turn in range(60):
        said = await session.ask(f"turn {turn}")
        assert said.startswith("I read")
    assert await runs_of(session) > 2
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
