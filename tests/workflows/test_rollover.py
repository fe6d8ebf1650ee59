"""Sessions that outlive the runs of their workflow."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from activities.archive import Archive, Store
from activities.providers import http_client, providers_from_env
from activities.tools import load_tools
from clew import Clew, ContextPolicy, Idle, Session
from deploy.local import Reply
from tests import toolbox
from tests.conftest import World
from worker import make_worker
from workflows.effects import Thresholds

OFTEN = Thresholds(events=80, bytes=200_000, updates=40, signals=60)


@asynccontextmanager
async def rolling(world: World, thresholds: Thresholds = OFTEN, store: Store | None = None) -> AsyncIterator[Clew]:
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


async def test_nothing_that_arrives_during_a_rollover_is_lost_or_taken_twice(world: World, clew: Clew) -> None:
    """Messages, steering, operations and cancellations of many callers at once, over many runs of the workflow."""
    model = world.model(lambda body: Reply("fine"))
    session = await clew.open(name(), model=model, on_busy="queue")

    added: list[str] = []

    async def talker(who: int) -> list[str]:
        done = []
        for turn in range(15):
            request_id = f"{who}-{turn}"
            request = await session.message(f"says {request_id}", request_id=request_id)
            with suppress(Idle):
                await session.inject(f"adds {request_id}", input_id=f"i-{request_id}")
                added.append(f"adds {request_id}")
            if turn % 5 == 0:
                await session._handle.signal("no_such_signal", f"{request_id}")
            outcome = await request.result()
            assert outcome.status == "completed", outcome
            done.append(request_id)
        return done

    done = [one for some in await asyncio.gather(*(talker(who) for who in range(4))) for one in some]
    assert await runs_of(session) > 3
    store = Archive(world.store, "default")
    await session.close()
    head = await store.head(session.id)
    assert head
    entries = [entry async for entry in store.read(head.family, head.root)]
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    said = [e.payload["content"] for e in entries if e.payload.get("role") == "user"]
    assert sorted(s for s in said if s.startswith("says")) == sorted(f"says {request_id}" for request_id in done)
    assert sorted(s for s in said if s.startswith("adds")) == sorted(added)
    outcomes = [e.refs["request_id"] for e in entries if e.kind == "run"]
    assert sorted(o for o in outcomes if not o.startswith("followup")) == sorted(done)
    assert len([e for e in entries if e.kind == "input" and e.payload["event"] == "rejected"]) == 12
