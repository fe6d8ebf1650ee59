"""Sessions that outlive the runs of their workflow."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.update.v1 import Input, Meta, Request
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionRequest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from clew import Clew, ContextPolicy, Session
from clew.contract import CancelInput, PendingCall
from clew.errors import ArchiveUnavailable, Busy, Idle
from clew.local import Reply, ToolCall
from clew.session.transport import send_update
from clew_activities import checkpoint_signing
from clew_activities.archive import Archive
from clew_activities.archive.thread_source import query_session
from clew_workflows.host.payload_converter import make_tolerant
from clew_workflows.protocol import RolloverThresholds
from tests.support.other_workflows import IMPATIENT, RESIGNED, Impatient
from tests.support.rolling import FailingStore, SlowModel, list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until


async def has_rolled(clew: Clew, session: Session) -> bool:
    """Whether the session is in its second run of the workflow, or a later one."""
    return len(await list_runs(clew, session.id)) > 1


async def test_a_session_goes_on_in_new_runs_of_its_workflow(stack: Stack, clew: Clew) -> None:
    """Seqs go on without a gap, the model sees what it would have seen, known requests are known."""
    model = stack.add_model(lambda body: Reply(f"I read {len(body['messages'])} messages"))
    session = await clew.open(make_id(), model=model, context_policy=ContextPolicy(max_input_tokens=2300))
    for turn in range(48):
        said = await session.ask(f"turn {turn}")
        assert said.startswith("I read")
    assert len(await list_runs(clew, session.id)) > 2
    status = await session.status()
    assert status.first_live_seq > 0
    assert status.rev == 1 + 3 * 48
    live = await session.entries(from_seq=status.first_live_seq)
    assert [entry.seq for entry in live] == list(range(status.first_live_seq, status.rev))
    first = await session.message("turn 0", request_id="again")
    assert (await first.result()).status == "completed"


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "workflows",
    [pytest.param(IMPATIENT, id="asks soon", marks=pytest.mark.slow), pytest.param(RESIGNED, id="asks late")],
)
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


@pytest.mark.slow
async def test_the_message_that_fills_the_history_is_answered(stack: Stack) -> None:
    """The store is away: what the session has accepted does not wait for it."""
    store = FailingStore()
    async with run_rolling_worker(stack, RolloverThresholds(updates=5), store, workflows=RESIGNED) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("turn 1")
        store.away = True
        for number in range(2, 16):
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await session.ask(f"turn {number}") == "fine"
        with pytest.raises(ArchiveUnavailable):
            await session.ask("one more")
        store.away = False

        await wait_until(lambda: has_rolled(clew, session))
        assert await session.ask("one more") == "fine"
        await session.close()


@pytest.mark.slow
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


async def test_no_summary_begins_while_a_rollover_waits(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller is refused, and nothing has changed: a repetition after the rollover writes the one summary."""
    may_sign = asyncio.Event()

    async def query_later(*args: Any) -> dict[str, Any]:
        await may_sign.wait()
        return await query_session(*args)

    monkeypatch.setattr(checkpoint_signing, "query_session", query_later)
    summarizer = stack.add_model("a summary")
    policy = ContextPolicy(keep_last_turns=1, summarization_model=summarizer)
    async with run_rolling_worker(stack, RolloverThresholds(updates=5)) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"), context_policy=policy)
        for turn in range(4):
            await session.ask(f"turn {turn}")
        signing = asyncio.create_task(session.checkpoint())
        handle = clew.temporal.get_workflow_handle(session.id)

        async def waits() -> bool:
            events = (await handle.fetch_history()).events
            archived = [
                event.event_id
                for event in events
                if event.activity_task_scheduled_event_attributes.activity_type.name == "archive"
            ]
            written = [
                event.event_id
                for event in events
                if event.activity_task_completed_event_attributes.scheduled_event_id in archived
            ]
            handled = [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
            return bool(written) and written[0] < handled[-1]

        await wait_until(waits)
        with pytest.raises(Busy):
            await session.summarize()
        may_sign.set()
        await signing

        async def has_rolled() -> bool:
            return len(await list_runs(clew, session.id)) > 1

        await wait_until(has_rolled)
        receipt = await session.summarize()
        assert [entry.seq for entry in await session.entries(kind="summary")] == [receipt.seq]
        assert len(stack.list_requests(summarizer)) == 1


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_command_that_is_sent_again_after_a_rollover_has_its_first_answer(stack: Stack, clew: Clew) -> None:
    """It is not refused as if another one had carried it out. A new command is refused."""
    model, command = SlowModel(), CancelInput()
    session = await clew.open(make_id(), model=stack.add_model(model))
    request = await session.message("go")
    await model.wait_for_call()
    receipt = await (await send_update(clew.temporal, session.id, "cancel_request", command, "c-1")).result()
    await request.result()
    while not await has_rolled(clew, session):
        await session.configure(context_policy=ContextPolicy(keep_last_turns=9))
    again = await send_update(clew.temporal, session.id, "cancel_request", command, "c-1")
    assert await again.result() == receipt
    with pytest.raises(Idle):
        await send_update(clew.temporal, session.id, "cancel_request", command, "c-2")


@pytest.mark.slow
async def test_an_update_that_is_refused_with_timers_leaves_no_trace(stack: Stack) -> None:
    """While nobody worked, two timers have fired and a rollover has become due: a replay has the same commands."""
    store, queue = FailingStore(), f"queue-{uuid.uuid4().hex}"
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT, task_queue=queue) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        handle = clew.temporal.get_workflow_handle(session.id)
        await session.ask("one")
        store.away = True

        async def count_pending_timers() -> int:
            kinds = Counter(event.event_type for event in (await handle.fetch_history()).events)
            fired = kinds[EventType.EVENT_TYPE_TIMER_FIRED] + kinds[EventType.EVENT_TYPE_TIMER_CANCELED]
            return kinds[EventType.EVENT_TYPE_TIMER_STARTED] - fired

        # That of the next attempt to archive, and that of the callers.
        while await count_pending_timers() < 2:
            await session.ask("and again")

    async def have_fired() -> bool:
        return await count_pending_timers() == 0

    await wait_until(have_fired)
    before = (await handle.describe()).history_length
    refused = UpdateWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=session.id),
        request=Request(meta=Meta(update_id="refused"), input=Input(name="nonsense")),
    )
    # The server keeps it for the next workflow task, although nobody waits for the answer any more.
    with suppress(RPCError):
        await clew.temporal.workflow_service.update_workflow_execution(refused, timeout=timedelta(seconds=1))
    async with run_rolling_worker(stack, store=store, workflows=IMPATIENT, task_queue=queue):

        async def has_gone_on() -> bool:
            return (await handle.describe()).history_length > before + 3

        await wait_until(has_gone_on)
        history = await handle.fetch_history()
    await Replayer(
        workflows=[Impatient],
        data_converter=make_tolerant(pydantic_data_converter),
        workflow_runner=UnsandboxedWorkflowRunner(),
    ).replay_workflow(history)
