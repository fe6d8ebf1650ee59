"""Hibernation and close: a workflow ends when all of its session is archived, or the caller is told why not yet."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from clew import Clew, Closed, Session
from clew.errors import ArchiveUnavailable, Interrupted, ThreadMismatch
from clew.local import Reply
from clew_activities.archive import Archive, Head
from clew_workflows.protocol import RolloverThresholds, SignCheckpoint
from tests.support.holding import delay_effects
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import FailingStore, list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until


async def test_close_is_answered_when_all_is_in_the_archive(stack: Stack, clew: Clew) -> None:
    """With the last seq, also to a caller who sends no argument; the workflow completes with the same."""
    for args in ((), ({"reason": "enough"},), (None,)):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        handle = clew.temporal.get_workflow_handle(session.id)
        answer = await handle.execute_update("close_session", args=args, result_type=dict)
        assert answer == {"last_seq": 4}
        head = await Archive(stack.store, "default").read_head(session.id)
        assert head
        assert (head.status, head.last_seq) == ("closed", 4)
        assert await handle.result() == answer
        with pytest.raises(Closed):
            await session.close()


async def test_close_cancels_what_runs_and_what_waits(stack: Stack, clew: Clew) -> None:
    """Every request has its outcome in the archive that the receipt speaks of; a session opened again goes on."""
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await asyncio.Event().wait()
        return Reply("never")

    session = await clew.open(make_id(), model=stack.add_model(script), on_busy="queue")
    first = await session.message("one")
    await called.wait()
    second = await session.message("two")
    receipt = await session.close("enough")
    outcomes = [await first.result(), await second.result()]
    assert [(one.status, one.termination_reason) for one in outcomes] == [("cancelled", "closed")] * 2
    entries = await session.entries()
    assert receipt.last_seq == entries[-1].seq == len(entries) - 1
    assert len([entry for entry in entries if entry.kind == "run"]) == 2
    again = await clew.open(session.id)
    assert await again.entries() == entries


async def test_many_may_close_at_once(stack: Stack, clew: Clew) -> None:
    """All callers get the same receipt, or `closed` if the session has ended."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    answers = await asyncio.gather(*(session.close() for _ in range(5)), return_exceptions=True)
    receipts = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert receipts
    assert {receipt.last_seq for receipt in receipts} == {4}
    assert all(isinstance(answer, Closed) for answer in answers if isinstance(answer, BaseException))


@pytest.mark.slow
async def test_while_the_store_is_away_a_closed_session_stays(stack: Stack) -> None:
    """The caller is told in time, may ask again, and nothing is lost: it ends when the store is back."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        store.away = True
        for _ in range(2):
            with pytest.raises(ArchiveUnavailable, match="the session is closed"):
                await session.close()
        with pytest.raises(Closed):
            await session.ask("two")
        assert (await session.status()).closed
        store.away = False

        async def ended() -> bool:
            with suppress(ArchiveUnavailable):
                # It may have ended by itself before it was asked again.
                with suppress(Closed):
                    assert (await session.close()).last_seq == 4
                return True
            return False

        await wait_until(ended)
        assert await session._handle.workflow.result() == {"last_seq": 4}
        assert [entry.seq for entry in await session.entries()] == [0, 1, 2, 3, 4]
        again = await clew.open(session.id)
        assert await again.ask("two") == "fine"


async def test_a_session_that_has_not_found_its_archive_can_be_closed(stack: Stack) -> None:
    """Its store was away from the beginning: other updates are refused, and the archive stays as it is.

    A close that came before the session knew that the store is away is answered as well.
    """
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        store.away = True
        for early in (True, False):
            session = await clew.open(make_id(), model=stack.add_model("fine"))
            if not early:
                with pytest.raises(ArchiveUnavailable):
                    await session.ask("one")
            assert (await session.close()).last_seq == -1
        store.away = False
        again = await clew.open(session.id, model=stack.add_model("fine"))
        assert await again.ask("one") == "fine"


async def open_with_anothers_archive(stack: Stack, clew: Clew) -> Session:
    """Open a session with one turn, and write an archive under its id as another workflow execution would."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    archive = Archive(stack.store, "default")
    root, upto = await archive.append(session.id, None, (await session.entries())[:2])
    await archive.set_head(
        Head(session_id=session.id, family=session.id, root=root, last_seq=upto, run_id="another"), None
    )
    return session


async def test_an_archive_that_is_anothers_is_told_to_who_closes(stack: Stack, clew: Clew) -> None:
    """The update and the workflow end with the same word."""
    session = await open_with_anothers_archive(stack, clew)
    with pytest.raises(ThreadMismatch, match="another workflow execution"):
        await session.close()
    with pytest.raises(WorkflowFailureError):
        await session._handle.workflow.result()


async def test_an_archive_that_is_anothers_ends_the_session_and_nothing_hangs(stack: Stack, clew: Clew) -> None:
    """What cannot be archived is not passed over in silence: closing ends, with the reason."""
    session = await open_with_anothers_archive(stack, clew)
    with pytest.raises(ThreadMismatch, match="another workflow execution"):
        await session.hibernate()
    assert await session.ask("two") == "fine"
    await session._handle.workflow.signal("close", {})
    with pytest.raises(WorkflowFailureError) as ended:
        await session._handle.workflow.result()
    assert isinstance(ended.value.cause, ApplicationError)
    assert ended.value.cause.type == "thread_mismatch"
    with pytest.raises(Interrupted, match="clew recover"):
        await clew.open(session.id, model=stack.add_model("fine"))


@pytest.mark.slow
async def test_a_close_that_meets_a_rollover_is_answered(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is about to go on in a new run, and waits for the answer to another update: it ends instead."""
    delay_effects(monkeypatch, SignCheckpoint)
    async with run_rolling_worker(stack, RolloverThresholds(updates=5)) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for turn in range(4):
            await session.ask(f"turn {turn}")
        checkpoint = asyncio.create_task(session.checkpoint())

        async def archived() -> bool:
            return await Archive(stack.store, "default").read_head(session.id) is not None

        await wait_until(archived)
        assert (await session.close()).last_seq == 13
        assert len(await list_runs(clew, session.id)) == 1
        await checkpoint


async def test_a_session_that_idles_hibernates_by_itself(stack: Stack, clew: Clew) -> None:
    """After the time that its configuration gives, counted from the last thing that happened."""
    session = await clew.open(make_id(), model=stack.add_model("fine"), idle_timeout_seconds=1)
    await session.ask("one")
    await session._handle.workflow.result()
    assert (await session.status()).closed
    again = await clew.open(session.id)
    assert await again.ask("two") == "fine"
    turn = ["ai_message", "ai_message", "run"]
    entries = await again.entries()
    assert [entry.kind for entry in entries] == ["config", *turn, "session", *turn]
    assert entries[4].payload == {"event": "hibernated", "reason": "nothing has happened for 1 seconds"}


@pytest.mark.slow
async def test_a_session_that_dozes_off_while_it_is_archived_hibernates(stack: Stack) -> None:
    """It has idled for long enough before the store has answered: it ends, and goes on when it is opened."""
    store = FailingStore()
    async with run_rolling_worker(stack, RolloverThresholds(updates=5), store=store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"), idle_timeout_seconds=1)
        store.ready.clear()
        for turn in range(5):
            await session.ask(f"turn {turn}")

        async def dozes() -> bool:
            return (await session.status()).status == "hibernating"

        await wait_until(dozes)
        store.ready.set()
        assert await session._handle.workflow.result() == {"last_seq": 16}
        assert await (await clew.open(session.id)).ask("and on") == "fine"
