"""Start-up: a session that is opened again goes on from its archive, or is refused with the reason."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from temporalio.client import WorkflowFailureError

from clew import Clew
from clew.errors import ArchiveDamaged, ArchiveUnavailable, Interrupted
from clew.local import Reply
from clew_activities.archive import Archive
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import FailingStore, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until


async def test_a_hibernating_session_is_taken_up_again(stack: Stack, clew: Clew) -> None:
    """Its thread goes on where it was, its configuration stands, and what was said is in the context."""
    model = stack.add_model(lambda body: Reply(f"{len(body['messages'])} messages"))
    session = await clew.open(make_id(), model=model, system_prompt="Be brief.", tools=["add"])
    assert await session.ask("one") == "2 messages"
    receipt = await session.hibernate()
    again = await clew.open(session.id, model=model)
    assert await again.ask("two") == "4 messages"
    entries = await again.entries(from_seq=receipt.last_seq + 1)
    assert [entry.seq for entry in entries] == [receipt.last_seq + n for n in (1, 2, 3)]
    assert (await again.status()).usage.model_calls == 2


@pytest.mark.slow
async def test_who_opens_a_hibernating_session_finds_one(stack: Stack, clew: Clew) -> None:
    """Any number of clients at once get the same session; without a model it is found as well."""
    model = stack.add_model("fine")
    session = await clew.open(make_id(), model=model)
    await session.ask("one", request_id="r-1")
    await session.hibernate()
    opened = await asyncio.gather(*(clew.open(session.id, model=model) for _ in range(5)))
    await asyncio.gather(*(one.message("one", request_id="r-1") for one in opened))
    assert len(await opened[0].entries(kind="run")) == 1
    await opened[0].hibernate()
    again = await clew.open(session.id)
    assert await again.ask("two") == "fine"


@pytest.mark.slow
async def test_a_session_whose_state_is_away_says_so_and_can_be_closed(stack: Stack) -> None:
    """It is found, and cannot go on yet: callers are refused, and answered when it can; closed, it is as it was."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        await session.hibernate()
        for ending in ("closed", "back"):
            store.stateless = True
            again = await clew.open(session.id)
            with pytest.raises(ArchiveUnavailable):
                await again.ask("two", request_id="r-two")
            if ending == "closed":
                await again.close()
            store.stateless = False

        async def answered() -> bool:
            with suppress(ArchiveUnavailable):
                return await again.ask("two", request_id="r-two") == "fine"
            return False

        await wait_until(answered)
        kinds = [entry.kind for entry in await again.entries()]
        turn = ["ai_message", "ai_message", "run"]
        assert kinds == ["config", *turn, "session", *turn]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("sessions", "changed"),
        pytest.param("states", "changed", marks=pytest.mark.slow),
        pytest.param("states", "lost", marks=pytest.mark.slow),
    ],
)
async def test_a_session_whose_archive_is_damaged_names_the_object(stack: Stack, kind: str, damage: str) -> None:
    """Its head or its state. With the object restored it goes on by itself."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        await session.hibernate()
        (path,) = [path async for path in store.list("default") if f"/{kind}/" in path and session.id in path]
        data = await store.get(path)
        await (store.delete(path) if damage == "lost" else store.put(path, data[:-7]))
        again = await clew.open(session.id, model=stack.add_model("unused"))
        with pytest.raises(ArchiveDamaged, match=path):
            await again.ask("two", request_id="r-two")
        await store.put(path, data)

        async def answered() -> bool:
            with suppress(ArchiveDamaged):
                return await again.ask("two", request_id="r-two") == "fine"
            return False

        await wait_until(answered)


@pytest.mark.slow
async def test_a_session_that_was_closed_before_it_had_woken_goes_on(stack: Stack) -> None:
    """The archive was made its own, and it was not told: nothing is in its history, so nothing needs a recovery."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        await session.hibernate()
        store.silent = True
        waking = await clew.open(session.id)
        with pytest.raises(ArchiveUnavailable):
            await waking.ask("lost")
        head = await Archive(store, "default").read_head(session.id)
        assert head is not None
        assert head.status == "live"
        assert (await waking.close()).last_seq == -1
        store.silent = False

        again = await clew.open(session.id)
        assert await again.ask("two") == "fine"
        turn = ["ai_message", "ai_message", "run"]
        assert [entry.kind for entry in await again.entries()] == ["config", *turn, "session", *turn]


@pytest.mark.slow
async def test_a_session_that_was_terminated_does_not_seem_to_be_empty(stack: Stack, clew: Clew) -> None:
    """Opening it says what to do, whether or not anything was archived."""
    for turns in (1, 30):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for turn in range(turns):
            await session.ask(f"turn {turn}")
        await session._handle.workflow.terminate("gone")
        with pytest.raises(Interrupted, match="clew recover"):
            await clew.open(session.id, model=stack.add_model("fine"))


@pytest.mark.slow
async def test_what_was_cut_off_is_not_read_as_if_it_were_whole(stack: Stack, clew: Clew) -> None:
    """Readers and openers are told to recover it, also after the workflow was started again by hand."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    for turn in range(30):
        await session.ask(f"turn {turn}")
    await session._handle.workflow.terminate("gone")
    whole = await session.entries()
    assert len(whole) == 1 + 3 * 30
    with pytest.raises(Interrupted, match="clew recover"):
        await clew.open(session.id)
    start = {"config": {"model": stack.add_model("fine")}}
    handle = await clew.temporal.start_workflow(
        "AgentSession", start, id=session.id, task_queue=clew.task_queue, result_type=dict
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    with pytest.raises(Interrupted, match="clew recover"):
        await session.entries()
