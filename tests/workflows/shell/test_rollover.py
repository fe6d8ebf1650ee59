"""Sessions that outlive the runs of their workflow."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from clew import Clew, ContextPolicy, Session
from clew.contract import PendingCall
from clew.errors import ArchiveUnavailable, Idle, ThreadMismatch
from clew.local import Reply, ToolCall
from clew_activities.archive import Archive, Head
from clew_workflows.protocol import RolloverThresholds
from tests.support.impatient import IMPATIENT, RESIGNED
from tests.support.rolling import FailingStore, SlowModel, list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    async with run_rolling_worker(stack) as clew:
        yield clew


async def has_rolled(clew: Clew, session: Session) -> bool:
    """Whether the session is in its second run of the workflow, or a later one."""
    return len(await list_runs(clew, session.id)) > 1


async def test_a_session_goes_on_in_new_runs_of_its_workflow(stack: Stack, clew: Clew) -> None:
    """Seqs go on without a gap, the model sees what it would have seen, known requests are known."""
    model = stack.add_model(lambda body: Reply(f"I read {len(body['messages'])} messages"))
    session = await clew.open(make_id(), model=model, context_policy=ContextPolicy(max_input_tokens=2300))
    for turn in range(36):
        said = await session.ask(f"turn {turn}")
        assert said.startswith("I read")
    assert len(await list_runs(clew, session.id)) > 2
    status = await session.status()
    assert status.first_live_seq > 0
    assert status.rev == 1 + 3 * 36
    live = await session.entries(from_seq=status.first_live_seq)
    assert [entry.seq for entry in live] == list(range(status.first_live_seq, status.rev))
    first = await session.message("turn 0", request_id="again")
    assert (await first.result()).status == "completed"


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
async def test_nothing_that_arrives_during_a_rollover_is_lost_or_taken_twice(stack: Stack, clew: Clew) -> None:
    """Messages, steering, operations and cancellations of many callers at once, over many runs of the workflow."""
    model = stack.add_model(lambda body: Reply("fine"))
    session = await clew.open(make_id(), model=model, on_busy="queue")

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
                await session._handle.workflow.signal("no_such_signal", f"{request_id}")
            outcome = await request.result()
            assert outcome.status == "completed", outcome
            done.append(request_id)
        return done

    done = [one for some in await asyncio.gather(*(talker(who) for who in range(4))) for one in some]
    assert len(await list_runs(clew, session.id)) > 3
    store = Archive(stack.store, "default")
    await session.close()
    head = await store.read_head(session.id)
    assert head
    entries = [entry async for entry in store.read(head.family, head.root)]
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    said = [e.payload["content"] for e in entries if e.payload.get("role") == "user"]
    assert sorted(s for s in said if s.startswith("says")) == sorted(f"says {request_id}" for request_id in done)
    assert sorted(s for s in said if s.startswith("adds")) == sorted(added)
    outcomes = [e.refs["request_id"] for e in entries if e.kind == "run"]
    assert sorted(o for o in outcomes if not o.startswith("followup")) == sorted(done)
    assert len([e for e in entries if e.kind == "input" and e.payload["event"] == "rejected"]) == 12


async def test_a_long_run_goes_on_between_its_steps(stack: Stack, clew: Clew) -> None:
    """It waits for the end of a run as long as it can; the run, its approvals and its usage go on in the next one."""

    def script(body: dict[str, Any]) -> Reply:
        rounds = sum(message["role"] == "tool" for message in body["messages"])
        return Reply("", tool_calls=(ToolCall("add", {"a": rounds, "b": 1}),)) if rounds < 25 else Reply("done")

    policy = ContextPolicy(max_input_tokens=100_000)
    session = await clew.open(make_id(), model=stack.add_model(script), tools=["add"], context_policy=policy)
    request = await session.message("go", max_iterations=40)
    outcome = await request.result()
    assert (outcome.status, outcome.iterations, outcome.usage.model_calls) == ("completed", 26, 26)
    assert await request.answer() == "done"
    assert len(await list_runs(clew, session.id)) > 2


async def test_what_is_carried_makes_no_run_full(stack: Stack) -> None:
    """A session that carries more than a run of its workflow is to hold goes on in a new one only as it is used."""
    policy = ContextPolicy(max_input_tokens=200_000)
    async with run_rolling_worker(stack, RolloverThresholds(bytes=50_000)) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"), context_policy=policy)
        for _ in range(3):
            await session.ask(random.randbytes(30_000).hex())
        before = await list_runs(clew, session.id)
        for _ in range(3):
            assert await session.ask("short") == "fine"
        assert len(await list_runs(clew, session.id)) <= len(before) + 1


async def test_an_approval_is_waited_for_over_runs_of_the_workflow(stack: Stack, clew: Clew) -> None:
    """What comes meanwhile fills the history; the call still waits, and runs once it is approved."""

    def script(body: dict[str, Any]) -> Reply:
        last = body["messages"][-1]
        return (
            Reply(last["content"])
            if last["role"] == "tool"
            else Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
        )

    session = await clew.open(make_id(), model=stack.add_model(script), tools=["add"], require_approval=["add"])
    request = await session.message("add")

    async def pending() -> list[PendingCall]:
        return (await session.status()).pending_approvals

    await wait_until(pending)
    (call,) = await pending()
    for _ in range(120):
        await session._handle.workflow.signal("nobody", 1)
    await wait_until(lambda: has_rolled(clew, session))
    await session.approve(call.tool_call_id)
    assert await request.answer() == "3"


@pytest.mark.slow
async def test_a_request_may_look_further_back_than_the_session_does(stack: Stack, clew: Clew) -> None:
    """What its own policy reaches is fetched from the archive, for it and for a lane that was left long ago."""
    model = stack.add_model(lambda body: Reply(f"{len(body['messages'])}"))
    narrow = ContextPolicy(max_input_tokens=2300, keep_last_turns=1)
    session = await clew.open(make_id(), model=model, context_policy=narrow)
    for turn in range(45):
        await session.ask(f"turn {turn} " + "word " * 40)
    assert (await session.status()).first_live_seq > 0
    assert int(await session.ask("all of it", context_policy=ContextPolicy(max_input_tokens=50_000))) == 91
    assert int(await session.ask("the end of it")) < 20
    await session.switch_context("side", op_id="o-1")
    for turn in range(40):
        await session.ask(f"aside {turn}")
    await session.switch_context("default", op_id="o-2")
    assert int(await session.ask("all again", context_policy=ContextPolicy(max_input_tokens=50_000))) == 95


async def test_a_snapshot_may_reach_further_back_than_those_in_the_archive(stack: Stack, clew: Clew) -> None:
    """With `base_seq`, what came before an older snapshot is in the context again, archived or not."""
    model = stack.add_model(lambda body: Reply(f"{len(body['messages'])}"))
    session = await clew.open(make_id(), model=model, context_policy=ContextPolicy(max_input_tokens=50_000))
    await session.ask("one")
    await session.reset_context(op_id="o-1")
    await session.ask("two")
    await session.switch_context("side", op_id="o-2")
    for _ in range(2):
        # More than what stays with a session of its archived entries.
        await session.ask("word " * 10_000)
        await session.reset_context(op_id=f"o-{uuid.uuid4().hex}")
    await session.hibernate()
    again = await clew.open(session.id)
    await again.replace_context([], op_id="o-3", context_ref="default", base_seq=0)
    await again.switch_context("default", op_id="o-4")
    assert await again.ask("three") == "5"
    await again.reset_context(op_id="o-5")
    assert await again.ask("four") == "1"
    await again.replace_context([], op_id="o-6", base_seq=0)
    assert await again.ask("five") == "9"


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


async def test_a_session_that_was_terminated_does_not_seem_to_be_empty(stack: Stack, clew: Clew) -> None:
    """Opening it says what to do, whether or not anything was archived."""
    for turns in (1, 30):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for turn in range(turns):
            await session.ask(f"turn {turn}")
        await session._handle.workflow.terminate("gone")
        with pytest.raises(ThreadMismatch, match="clew recover"):
            await clew.open(session.id, model=stack.add_model("fine"))


@pytest.mark.parametrize("workflows", [IMPATIENT, RESIGNED], ids=["asks soon", "asks late"])
async def test_a_store_that_is_away_is_waited_for(stack: Stack, workflows: Sequence[type]) -> None:
    """The session serves on; full, it refuses new messages; when the store is back it goes on by itself, at once."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=workflows) as clew:
        model = stack.add_model("fine")
        session = await clew.open(make_id(), model=model)
        await session.ask("one")
        store.away = True
        with pytest.raises(ArchiveUnavailable):
            await session.hibernate()
        said = 1
        with suppress(ArchiveUnavailable):
            for said in range(1, 100):
                assert await session.ask(f"turn {said}") == "fine"
        assert 10 < said < 99
        assert len(await list_runs(clew, session.id)) == 1
        with pytest.raises(ArchiveUnavailable):
            await (await clew.open(make_id(), model=model)).ask("nobody knows whether there was something")
        store.away = False

        await wait_until(lambda: has_rolled(clew, session))
        assert await session.ask("and on") == "fine"
        entries = await session.entries()
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert len(entries) == 1 + 3 * (said + 1) + 2
        told = [entry.payload for entry in entries if entry.kind == "session"]
        assert [payload["event"] for payload in told] == ["hibernated", "woken"]
        assert "cannot be reached" in told[1]["reason"]


async def test_what_was_archived_without_an_answer_is_gone_on_from(stack: Stack) -> None:
    """The head stands, nobody was told, and more has been said since: the next attempt goes on from there."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        store.silent = True
        archive = Archive(store, "default")
        said = 0

        async def written() -> bool:
            nonlocal said
            said += 1
            await session.ask(f"turn {said}")
            return await archive.read_head(session.id) is not None

        await wait_until(written)
        for _ in range(3):
            await written()
        assert len(await list_runs(clew, session.id)) == 1
        store.silent = False

        await wait_until(lambda: has_rolled(clew, session))
        assert await session.ask("and on") == "fine"
        entries = await session.entries()
        assert [entry.seq for entry in entries] == list(range(1 + 3 * (said + 1)))
        await session.close()


async def test_a_run_that_is_stopped_during_a_rollover_ends(stack: Stack) -> None:
    """A run is cancelled between two model calls, while the archive is written: what waits for its end is served."""
    store, model = FailingStore(), SlowModel()
    thresholds = RolloverThresholds(updates=5)
    async with run_rolling_worker(stack, thresholds, store) as clew:
        session = await clew.open(make_id(), model=stack.add_model(model), on_busy="queue")
        first = await session.message("one")
        await model.wait_for_call()
        for number in range(8):
            await session.steer(f"input {number}")
        store.ready.clear()
        model.release()

        async def archives() -> bool:
            described = await clew.temporal.get_workflow_handle(session.id).describe()
            pending = described.raw_description.pending_activities
            return any(activity.activity_type.name == "archive" for activity in pending)

        await wait_until(archives)
        await session.cancel(first.request_id)
        second = await session.message("two")
        store.ready.set()
        assert (await first.result()).status == "cancelled"
        model.release(10)
        assert (await second.result()).status == "completed"
        assert await has_rolled(clew, session)
        await session.close()


async def test_an_old_head_is_not_continued(stack: Stack) -> None:
    """The store shows a head that is older than the session knows: the next one holds the thread without a gap."""
    store = FailingStore()
    async with run_rolling_worker(stack, store=store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        archive, path = Archive(store, "default"), f"default/sessions/s-{session.id}.json"
        said = 0

        async def roll(runs: int) -> None:
            nonlocal said
            while len(await list_runs(clew, session.id)) < runs:
                said += 1
                await session.ask(f"turn {said}")

        await roll(2)
        old = await store.get(path)
        await roll(3)
        await store.put(path, old)
        await roll(4)
        await session.close()
        head = await archive.read_head(session.id)
        assert head is not None
        entries = [entry async for entry in archive.read(head.family, head.root)]
        assert [entry.seq for entry in entries] == list(range(head.last_seq + 1))
        assert sum(entry.kind == "run" for entry in entries) == said


async def test_an_archive_that_is_anothers_ends_the_session_and_nothing_hangs(stack: Stack, clew: Clew) -> None:
    """What cannot be archived is not passed over in silence: closing ends, with the reason."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("one")
    archive = Archive(stack.store, "default")
    root, upto = await archive.append(session.id, None, (await session.entries())[:2])
    await archive.set_head(
        Head(session_id=session.id, family=session.id, root=root, last_seq=upto, run_id="another"), None
    )
    with pytest.raises(ThreadMismatch, match="another workflow execution"):
        await session.hibernate()
    assert await session.ask("two") == "fine"
    await session._handle.workflow.signal("close", {})
    with pytest.raises(WorkflowFailureError) as ended:
        await session._handle.workflow.result()
    assert isinstance(ended.value.cause, ApplicationError)
    assert ended.value.cause.type == "thread_mismatch"
    with pytest.raises(ThreadMismatch, match="clew recover"):
        await clew.open(session.id, model=stack.add_model("fine"))


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


async def test_what_was_cut_off_is_not_read_as_if_it_were_whole(stack: Stack, clew: Clew) -> None:
    """Nor when somebody has started it again, who was refused for it; nor opened without a model."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    for turn in range(30):
        await session.ask(f"turn {turn}")
    await session._handle.workflow.terminate("gone")
    whole = await session.entries()
    assert len(whole) == 1 + 3 * 30
    with pytest.raises(ThreadMismatch, match="clew recover"):
        await clew.open(session.id)
    start = {"config": {"model": stack.add_model("fine")}}
    handle = await clew.temporal.start_workflow(
        "AgentSession", start, id=session.id, task_queue=clew.task_queue, result_type=dict
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    with pytest.raises(ThreadMismatch, match="clew recover"):
        await session.entries()
