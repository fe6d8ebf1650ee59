"""What is in the event history is in the thread, whichever worker has read it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowContinuedAsNewError, WorkflowHistory, WorkflowUpdateStage

from bench.pauses import run_benchmark
from clew import Clew, Session
from clew.errors import Idle
from clew.local import Reply, ToolCall, temporal_server
from clew_activities.archive import Archive
from clew_activities.archive.archived_sessions import SearchAttributes
from clew_activities.archive.blob_store import Blobs
from clew_audit.audit import audit_session
from clew_workflows.host.row import QUICK_UPDATES
from clew_workflows.protocol import RolloverThresholds, SignCheckpoint
from tests.support.holding import delay_effects
from tests.support.media import make_png
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import FailingStore, SlowModel, list_runs, make_id, make_summary_policy, run_rolling_worker
from tests.support.scenarios import control, reply_as_scenario
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until
from tests.support.webhooks import SETTINGS, receive

SIGNALS = 4
ROUNDS = 40
"""Rounds in which no task was held back, after which a test gives up."""
COMMANDS = {
    EventType.Value(f"EVENT_TYPE_{name}")
    for name in (
        *("ACTIVITY_TASK_SCHEDULED", "ACTIVITY_TASK_CANCEL_REQUESTED", "TIMER_STARTED", "TIMER_CANCELED"),
        *("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", "WORKFLOW_EXECUTION_UPDATE_COMPLETED"),
        *("WORKFLOW_EXECUTION_COMPLETED", "WORKFLOW_EXECUTION_CONTINUED_AS_NEW", "WORKFLOW_EXECUTION_FAILED"),
        *("WORKFLOW_PROPERTIES_MODIFIED", "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"),
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
    )
}
"""Events that the server writes for what a task of the session's workflow commands."""
HANDLED = {
    EventType.Value(f"EVENT_TYPE_{name}")
    for name in (
        *("WORKFLOW_EXECUTION_STARTED", "WORKFLOW_EXECUTION_SIGNALED"),
        *("ACTIVITY_TASK_COMPLETED", "ACTIVITY_TASK_FAILED", "ACTIVITY_TASK_TIMED_OUT", "ACTIVITY_TASK_CANCELED"),
        *("TIMER_FIRED", "CHILD_WORKFLOW_EXECUTION_STARTED", "CHILD_WORKFLOW_EXECUTION_COMPLETED"),
    )
}
"""Events on which a session acts."""


@pytest.mark.slow
async def test_signals_right_after_a_rollover_are_in_the_thread(stack: Stack) -> None:
    """The server holds the first task of a run back; refused updates start it earlier, and no signal is lost."""
    async with (
        temporal_server(ui=False) as server,
        run_rolling_worker(
            replace(stack, clew=await Clew.connect(server.address)), RolloverThresholds(signals=5)
        ) as clew,
    ):
        # On a busy machine a run may live for over a second, and the next one begins at once.
        for _ in range(ROUNDS):
            if any(await asyncio.gather(*(_signal_after_rollover(stack, clew) for _ in range(3)))):
                return
    pytest.skip("the machine was so busy that the server held no task back")


async def _signal_after_rollover(stack: Stack, clew: Clew) -> bool:
    """Whether the server held back the first task of the run that got the signals."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    handle = clew.temporal.get_workflow_handle(session.id)
    first = clew.temporal.get_workflow_handle(session.id, run_id=(await handle.describe()).run_id)
    for number in range(5):
        await handle.signal("steer", {"content": f"before {number}"})
    with pytest.raises(WorkflowContinuedAsNewError):
        await first.result(follow_runs=False)
    await asyncio.gather(*(_refused(session) for _ in range(4)))
    for number in range(SIGNALS):
        await handle.signal("steer", {"content": f"after {number}"})
    await session.ask("go on")
    contents = [entry.payload["content"] for entry in await session.entries() if entry.kind == "input"]
    assert contents[5:] == [f'{{"content":"after {number}"}}' for number in range(SIGNALS)]
    report = await audit_session(clew.temporal, Archive(stack.store, "default"), session.id)
    assert report.differences == []
    history = await handle.fetch_history()
    backoff = history.events[0].workflow_execution_started_event_attributes.first_workflow_task_backoff
    return backoff.ToTimedelta().total_seconds() > 0


async def _refused(session: Session) -> None:
    with pytest.raises(Idle):
        await session.inject("refused")


@pytest.mark.slow
async def test_every_task_that_handles_an_event_has_a_command(stack: Stack) -> None:
    """A replay would join a task without one with the task after it, at another time and in another order."""

    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model(reply_as_scenario), tools=["add"])
        handle = clew.temporal.get_workflow_handle(session.id)
        await handle.signal("steer", {"content": "nobody reads this"})
        await handle.signal("no_such_signal")
        blob = await session.put_blob(make_png())
        await handle.signal("steer", {"content": [{"type": "image", "blob": blob}]})

        async def is_rejected() -> bool:
            return len(await session.entries(kind="input")) == 3

        await wait_until(is_rejected)
        await control(session)
        runs = await list_runs(clew, session.id)
        histories = [await clew.temporal.get_workflow_handle(session.id, run_id=run).fetch_history() for run in runs]
    assert len(histories) > 1
    assert {run: _without_command(history.events) for run, history in zip(runs, histories, strict=True)} == {
        run: [] for run in runs
    }


async def test_a_task_whose_timer_ends_no_wait_has_a_command(stack: Stack) -> None:
    """The timer of lists, which quick turns share, and that of a session that is no longer idle."""
    model = SlowModel()
    async with run_rolling_worker(stack, RolloverThresholds(), workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model(model), idle_timeout_seconds=2)
        for turn in range(QUICK_UPDATES + 1):
            request = await session.message(f"turn {turn}")
            model.release()
            await request.result()
        request = await session.message("one more")
        handle = clew.temporal.get_workflow_handle(session.id)

        async def have_fired() -> bool:
            events = (await handle.fetch_history()).events
            return sum(event.event_type == EventType.EVENT_TYPE_TIMER_FIRED for event in events) > 1

        await wait_until(have_fired)
        model.release()
        await request.result()
        history = await handle.fetch_history()
    assert _without_command(history.events) == []


@pytest.mark.slow
async def test_the_task_in_which_a_rollover_begins_to_wait_has_a_command(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the answer to another update."""
    delay_effects(monkeypatch, SignCheckpoint)
    async with run_rolling_worker(stack, RolloverThresholds(updates=5)) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for turn in range(4):
            await session.ask(f"turn {turn}")
        await session.checkpoint()
        history = await _fetch_first_run(clew, session)
    assert _without_command(history.events) == []


@pytest.mark.slow
async def test_the_task_in_which_a_rollover_begins_to_wait_for_a_webhook_has_a_command(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All updates are answered, and the server has not confirmed the start of a delivery."""
    start: Any = workflow.start_child_workflow

    async def start_later(*args: Any, **options: Any) -> Any:
        await workflow.sleep(3)
        return await start(*args, **options)

    monkeypatch.setattr(workflow, "start_child_workflow", start_later)
    async with (
        receive() as receiver,
        run_rolling_worker(stack, RolloverThresholds(updates=5), webhooks=SETTINGS) as clew,
    ):
        session = await clew.open(make_id(), model=stack.add_model("fine"), webhooks=[receiver.make_webhook()])
        for turn in range(5):
            await session.ask(f"turn {turn}")
        history = await _fetch_first_run(clew, session)
        await receiver.wait_for(5)
    assert _without_command(history.events) == []


@pytest.mark.slow
async def test_the_task_that_commits_a_summary_has_a_command_while_a_message_waits(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message's blobs are still being looked up: its caller gets no answer in that task."""
    summarizer, may_check, find_problems = SlowModel(), asyncio.Event(), Blobs.find_problems

    async def find_later(*args: Any) -> Any:
        await may_check.wait()
        return await find_problems(*args)

    monkeypatch.setattr(Blobs, "find_problems", find_later)
    policy = make_summary_policy(stack.add_model(summarizer))
    async with run_rolling_worker(stack, RolloverThresholds()) as clew:
        session = await clew.open(make_id(), model=stack.add_model("word " * 60), context_policy=policy)
        blob = await session.put_blob(make_png())
        for number in range(4):
            await session.ask(f"question {number} " + "word " * 60)
        await summarizer.wait_for_call()
        update = await clew.temporal.get_workflow_handle(session.id).start_update(
            "message",
            {"content": [{"type": "text", "text": "look"}, {"type": "image", "blob": blob}]},
            wait_for_stage=WorkflowUpdateStage.ACCEPTED,
            result_type=dict,
        )
        summarizer.release(10)

        async def is_written() -> bool:
            return bool(await session.entries(kind="summary"))

        await wait_until(is_written)
        may_check.set()
        assert (await update.result())["status"] == "completed"
        history = await clew.temporal.get_workflow_handle(session.id).fetch_history()
    assert _without_command(history.events) == []


@pytest.mark.slow
async def test_the_task_in_which_a_call_expires_during_a_rollover_has_a_command(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows from the expiry is done after the rollover, and a namespace may have no search attributes."""
    store = FailingStore()

    async def list_none(_self: SearchAttributes) -> tuple[str, ...]:
        return ()

    monkeypatch.setattr(SearchAttributes, "list", list_none)

    def order_once(body: dict[str, Any]) -> Reply:
        is_first = get_last_message(body)["role"] == "user"
        return Reply(tool_calls=(ToolCall("order_later", {"item": "tea"}),)) if is_first else Reply("done")

    async with run_rolling_worker(stack, RolloverThresholds(signals=5), store) as clew:
        session = await clew.open(make_id(), model=stack.add_model(order_once), tools=["order_later"])
        handle = clew.temporal.get_workflow_handle(session.id)
        store.ready.clear()
        request = await session.message("go")
        for _ in range(10):
            await handle.signal("no_such_signal")
        await _wait_for_timer(clew, session)
        store.ready.set()
        assert await request.answer() == "done"
        history = await _fetch_first_run(clew, session)
    assert _without_command(history.events) == []


async def _wait_for_timer(clew: Clew, session: Session) -> None:
    """Wait until a session has handled a timer that has fired."""
    handle = clew.temporal.get_workflow_handle(session.id)

    async def has_handled() -> bool:
        types = [event.event_type for event in (await handle.fetch_history()).events]
        fired = EventType.EVENT_TYPE_TIMER_FIRED
        return fired in types and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in types[types.index(fired) :]

    await wait_until(has_handled)


async def _fetch_first_run(clew: Clew, session: Session) -> WorkflowHistory:
    """Fetch the history of a session's first workflow run, once the session has rolled over."""

    async def has_rolled() -> bool:
        return len(await list_runs(clew, session.id)) > 1

    await wait_until(has_rolled)
    first = (await list_runs(clew, session.id))[-1]
    return await clew.temporal.get_workflow_handle(session.id, run_id=first).fetch_history()


def _without_command(events: Sequence[HistoryEvent]) -> list[str]:
    """The tasks that handled events without a command: the types of those events."""
    found, handled, waiting = [], list[str](), list[str]()
    given_up = {event.activity_task_cancel_requested_event_attributes.scheduled_event_id for event in events}
    for event, following in zip(events, [*events[1:], None], strict=True):
        if event.event_type in HANDLED and _activity_of(event) not in given_up:
            waiting.append(f"{event.event_id} {EventType.Name(event.event_type)}")
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            # What comes from here on is for the next task.
            handled, waiting = handled + waiting, []
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            if handled and (following is None or following.event_type not in COMMANDS):
                found.append(", ".join(handled))
            handled = []
    return found


def _activity_of(event: HistoryEvent) -> int | None:
    """The event that scheduled the activity that ended."""
    for ended in ("completed", "failed", "timed_out", "canceled"):
        if event.HasField(f"activity_task_{ended}_event_attributes"):  # type: ignore[arg-type]
            scheduled: int = getattr(event, f"activity_task_{ended}_event_attributes").scheduled_event_id
            return scheduled
    return None


@pytest.mark.slow
@pytest.mark.long
async def test_a_worker_that_pauses_loses_nothing() -> None:
    """SIGSTOP and SIGCONT at any moment, with rollovers, signals and refused updates: thread and history agree."""
    report = await run_benchmark(tries=4, at_once=4, seed=1)
    assert report.problems == ()
    assert report.runs > report.tries
    assert report.pauses > 0
