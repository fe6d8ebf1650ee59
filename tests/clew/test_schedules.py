"""Schedules on a real server: which request of which session each time is, and what its end says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from clew import Agent, Clew
from clew.errors import InvalidInput, NotFound
from clew.local import Reply
from clew.schedules import ACTION_PREFIX, Overlap, ScheduleDetails, Schedules
from clew_activities.worker import make_workflow_sandbox
from clew_workflows.contract import SEND_WORKFLOW
from clew_workflows.host import services
from clew_workflows.host.services import SendMessage
from tests.support.encrypted import make_encryption, run_worker
from tests.support.processes import run_worker_process
from tests.support.stack import Stack, get_last_message, make_client, serve
from tests.support.waiting import wait_until

NEVER: Any = {"cron": "0 0 1 1 *", "time_zone": "Europe/Berlin"}
"""Times that do not come while a test runs."""


def echo(body: dict[str, Any]) -> Reply:
    return Reply(f"heard {get_last_message(body)['content']}")


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    """A worker with the agent `echo` on a task queue of its own."""
    agent = Agent("echo", model=stack.add_model(echo))
    async with serve(make_client(stack), stack.environ, store=stack.store, agents=[agent]) as clew:
        yield clew


@pytest.fixture
async def schedule_id(clew: Clew) -> AsyncIterator[str]:
    """The id of a schedule that is deleted after the test."""
    name = f"schedule-{uuid.uuid4().hex[:12]}"
    yield name
    if any([each.id == name async for each in await clew.temporal.list_schedules()]):
        await Schedules(clew).delete(name)


async def wait_for_runs(schedules: Schedules, schedule_id: str, count: int = 1) -> ScheduleDetails:
    """Wait until a schedule has started so many workflows."""

    async def has_run() -> bool:
        return (await schedules.show(schedule_id)).runs >= count

    await wait_until(has_run)
    return await schedules.show(schedule_id)


def get_run(clew: Clew, details: ScheduleDetails, number: int = -1) -> WorkflowHandle[Any, dict[str, Any]]:
    return clew.temporal.get_workflow_handle(details.recent[number].workflow_id, result_type=dict)


async def test_a_message_is_sent_to_a_session_that_hibernates(clew: Clew, schedule_id: str) -> None:
    """The session is opened again. The request has the id of the schedule and the time."""
    session = await clew.open(f"test-{uuid.uuid4().hex}", agent="echo")
    await session.ask("hello")
    await session.hibernate()
    schedules = Schedules(clew)
    await schedules.create(schedule_id, "tick", session_id=session.id, **NEVER)
    await schedules.trigger(schedule_id)
    details = await wait_for_runs(schedules, schedule_id)
    receipt = await get_run(clew, details).result()
    assert receipt["session_id"] == session.id
    assert receipt["request_id"] == details.recent[0].workflow_id
    assert receipt["request_id"].startswith(f"{ACTION_PREFIX}{schedule_id}-")
    assert receipt["outcome"]["status"] == "completed"
    assert await session.request(receipt["request_id"]).answer() == "heard tick"


@pytest.mark.slow
async def test_each_time_is_a_new_session(clew: Clew, schedule_id: str) -> None:
    """An interval starts a session each time, of the agent, with the time in its id."""
    schedules = Schedules(clew)
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    await schedules.create(
        schedule_id, "tick", session_prefix=prefix, agent="echo", every=timedelta(seconds=1), overlap="allow_all"
    )
    details = await wait_for_runs(schedules, schedule_id, 2)
    await schedules.pause(schedule_id)
    receipts = [await get_run(clew, details, number).result() for number in (0, 1)]
    times = [f"{prefix}-{run.scheduled_at:%Y%m%dT%H%M%SZ}" for run in details.recent[:2]]
    assert [receipt["session_id"] for receipt in receipts] == times
    for session_id in times:
        # A thousand open sessions a day would be left otherwise.
        assert await clew.temporal.get_workflow_handle(session_id).result()
    again = await clew.open(times[0])
    assert await again.request(receipts[0]["request_id"]).answer() == "heard tick"
    assert await again.ask("and now?") == "heard and now?"


@pytest.mark.parametrize(("target", "close", "stays"), [("session_prefix", False, True), ("session_id", True, False)])
async def test_a_schedule_says_whether_its_session_is_closed(
    clew: Clew, schedule_id: str, target: str, close: bool, stays: bool
) -> None:
    """`close` takes precedence: a session of a prefix may stay open, and one with an id be closed each time."""
    schedules = Schedules(clew)
    named: Any = {target: f"test-{uuid.uuid4().hex[:8]}"}
    await schedules.create(schedule_id, "tick", agent="echo", close=close, **named, **NEVER)
    await schedules.trigger(schedule_id)
    details = await wait_for_runs(schedules, schedule_id)
    receipt = await get_run(clew, details).result()
    handle = clew.temporal.get_workflow_handle(receipt["session_id"])
    if stays:
        assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    else:
        await handle.result()


async def test_a_request_that_does_not_complete_fails_its_workflow(
    stack: Stack, clew: Clew, schedule_id: str
) -> None:
    """Operators see the word of the refusal, or of the failure, beside the time."""
    schedules = Schedules(clew)
    await schedules.create(schedule_id, "tick", session_id=f"missing-{uuid.uuid4().hex}", **NEVER)
    await schedules.trigger(schedule_id)
    first = await wait_for_runs(schedules, schedule_id)
    assert await read_failure(clew, first) == "not_found"
    broken = stack.add_model(lambda _body: Reply.error(400))
    await schedules.update(schedule_id, session_prefix="test", config={"model": broken})
    await schedules.trigger(schedule_id)
    assert await read_failure(clew, await wait_for_runs(schedules, schedule_id, 2)) == "bad_request"


async def read_failure(clew: Clew, details: ScheduleDetails) -> str | None:
    """Read the type of the failure of the newest run."""
    with pytest.raises(WorkflowFailureError) as failed:
        await get_run(clew, details).result()
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause.type


@pytest.mark.parametrize(
    ("overlap", "statuses"),
    [
        ("skip", ["completed"]),
        pytest.param("cancel_other", ["cancelled", "completed"], marks=pytest.mark.slow),
    ],
)
async def test_times_overlap_as_the_policy_says(
    stack: Stack, clew: Clew, schedule_id: str, overlap: Overlap, statuses: list[str]
) -> None:
    """A time while the request before runs is skipped, or cancels that request."""
    held = asyncio.Event()
    calls: list[str] = []

    async def hold(body: dict[str, Any]) -> Reply:
        calls.append(get_last_message(body)["content"])
        if len(calls) == 1:
            await held.wait()
        return Reply("done")

    session = await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model(hold))
    schedules = Schedules(clew)
    await schedules.create(schedule_id, "tick", session_id=session.id, overlap=overlap, **NEVER)
    await schedules.trigger(schedule_id)
    await wait_until(lambda: len(calls) == 1)
    # The id of a run has the second of its time.
    first = (await wait_for_runs(schedules, schedule_id)).recent[0].scheduled_at
    await wait_until(lambda: datetime.now(UTC) - first > timedelta(seconds=1))
    await schedules.trigger(schedule_id)

    async def is_decided() -> bool:
        details = await schedules.show(schedule_id)
        return bool(details.skipped) if overlap == "skip" else details.runs == 2 and len(calls) == 2

    await wait_until(is_decided)
    held.set()

    async def list_statuses() -> list[str]:
        return [entry.payload["status"] async for entry in session.read(kind="run")]

    async def has_ended() -> bool:
        return len(await list_statuses()) == len(statuses)

    await wait_until(has_ended)
    assert await list_statuses() == statuses


async def test_a_schedule_is_shown_paused_changed_and_deleted(clew: Clew, schedule_id: str) -> None:
    """What is left out of a change stays, the cron expression is shown as it was written, and a list has it."""
    schedules = Schedules(clew)
    await schedules.create(
        schedule_id,
        "tick",
        session_id="the-session",
        agent="echo",
        options={"timeout_seconds": 60, "metadata": {"from": "cron"}},
        jitter=timedelta(seconds=5),
        catch_up=timedelta(hours=1),
        overlap="buffer_one",
        paused=True,
        note="for a test",
        **NEVER,
    )
    details = await schedules.show(schedule_id)
    assert details.summary.times == ("0 0 1 1 *",)
    assert (details.summary.paused, details.summary.note, details.time_zone) == (True, "for a test", "Europe/Berlin")
    assert (details.overlap, details.catch_up, details.jitter) == (
        "buffer_one",
        timedelta(hours=1),
        timedelta(seconds=5),
    )
    assert details.next[0].astimezone(ZoneInfo("Europe/Berlin")).strftime("%d.%m. %H:%M") == "01.01. 00:00"
    assert details.message.message.on_busy == "queue"
    await schedules.update(schedule_id, content="tock", every=timedelta(days=1), offset=timedelta(hours=6))
    await schedules.resume(schedule_id)
    changed = await schedules.show(schedule_id)
    assert changed.summary.times == ("every 1 day, 0:00:00 at 6:00:00",)
    assert changed.message.message == details.message.message.model_copy(update={"content": "tock"})
    assert (changed.message.session_id, changed.message.config) == ("the-session", details.message.config)
    assert (changed.summary.paused, changed.overlap, changed.jitter) == (False, "buffer_one", timedelta(seconds=5))

    async def is_listed() -> bool:
        return schedule_id in [summary.schedule_id async for summary in schedules.list()]

    await wait_until(is_listed)
    await schedules.delete(schedule_id)
    with pytest.raises(NotFound):
        await schedules.show(schedule_id)


@pytest.mark.parametrize(
    "options",
    [
        {"session_id": "a"},
        {"cron": "0 6 * * *"},
        {"session_id": "a", "session_prefix": "b", "cron": "0 6 * * *"},
        {"session_prefix": "b", "cron": "0 6 * * *"},
        {"session_id": "a", "cron": "every day"},
        {"session_id": "a", "cron": "0 6 * * *", "time_zone": "Mars/Olympus"},
        {"session_id": "a", "every": timedelta()},
        {"session_id": "a", "every": timedelta(hours=1), "offset": timedelta(hours=1)},
        {"session_id": "a", "every": timedelta(hours=1), "overlap": "maybe"},
        {"session_id": "a", "every": timedelta(hours=1), "options": {"colour": "red"}},
        {"session_id": "a b", "every": timedelta(hours=1)},
    ],
)
async def test_what_is_no_schedule_is_refused(clew: Clew, schedule_id: str, options: Any) -> None:
    """Before anything is stored."""
    with pytest.raises(InvalidInput):
        await Schedules(clew).create(schedule_id, "tick", **options)
    with pytest.raises(NotFound):
        await Schedules(clew).show(schedule_id)


async def test_schedules_of_others_are_left_alone(clew: Clew, schedule_id: str) -> None:
    """A schedule that starts another workflow is not listed, changed or deleted. An id is taken once."""
    schedules = Schedules(clew)
    action = ScheduleActionStartWorkflow("Other", id="other", task_queue="other")
    other = Schedule(action=action, spec=ScheduleSpec(cron_expressions=["0 0 1 1 *"]))
    handle = await clew.temporal.create_schedule(schedule_id, other)
    for command in (schedules.show, schedules.delete, schedules.pause, schedules.trigger):
        with pytest.raises(NotFound):
            await command(schedule_id)
    with pytest.raises(InvalidInput):
        await schedules.create(schedule_id, "tick", session_id="a", **NEVER)
    await handle.delete()


async def test_the_same_time_is_served_once(clew: Clew) -> None:
    """A workflow that runs again under its id finds the request that it has sent. Its history replays."""
    session = await clew.open(f"test-{uuid.uuid4().hex}", agent="echo")
    argument = {"session_id": session.id, "message": {"content": "tick"}}
    workflow_id = f"{ACTION_PREFIX}test-{uuid.uuid4().hex}"
    for _ in range(2):
        receipt = await clew.temporal.execute_workflow(
            SEND_WORKFLOW, argument, id=workflow_id, task_queue=clew.task_queue, result_type=dict
        )
        assert receipt["request_id"] == workflow_id
    assert [entry.payload["status"] async for entry in session.read(kind="run")] == ["completed"]
    replayer = Replayer(
        workflows=[SendMessage], data_converter=clew.temporal.data_converter, workflow_runner=make_workflow_sandbox()
    )
    await replayer.replay_workflow(await clew.temporal.get_workflow_handle(workflow_id).fetch_history())


async def test_a_schedule_of_encrypted_sessions(stack: Stack, schedule_id: str) -> None:
    """The message of a schedule is encrypted like any other, and read with the keys."""
    async with run_worker(stack, make_encryption("k1")) as own:
        schedules = Schedules(own.clew)
        prefix = f"test-{uuid.uuid4().hex[:8]}"
        config: Any = {"model": own.add_model("fine")}
        await schedules.create(schedule_id, "a secret", session_prefix=prefix, config=config, **NEVER)
        raw = await stack.clew.temporal.get_schedule_handle(schedule_id).describe()
        assert b"a secret" not in raw.raw_description.SerializeToString()
        await schedules.trigger(schedule_id)
        details = await wait_for_runs(schedules, schedule_id)
        assert details.message.message.content == "a secret"
        receipt = await get_run(own.clew, details).result()
        await own.clew.temporal.get_workflow_handle(receipt["session_id"]).result()
        session = await own.clew.open(receipt["session_id"])
        assert await session.request(receipt["request_id"]).answer() == "fine"
        await schedules.update(schedule_id, note="changed")
        await schedules.trigger(schedule_id)


async def test_a_request_may_take_longer_than_a_workflow_run(
    stack: Stack, clew: Clew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow continues as new before its history is full, and waits for the same request."""
    monkeypatch.setattr(services, "AWAIT_SECONDS", 1)
    monkeypatch.setattr(services, "AWAIT_STEPS", 1)
    held = asyncio.Event()

    async def hold(_body: dict[str, Any]) -> Reply:
        await held.wait()
        return Reply("done")

    argument = {
        "session_prefix": f"test-{uuid.uuid4().hex[:8]}",
        "config": {"model": stack.add_model(hold)},
        "message": {"content": "tick"},
    }
    handle = await clew.temporal.start_workflow(
        SEND_WORKFLOW, argument, id=f"test-{uuid.uuid4().hex}", task_queue=clew.task_queue, result_type=dict
    )

    async def has_continued() -> bool:
        return (await clew.temporal.get_workflow_handle(handle.id).describe()).run_id != handle.first_execution_run_id

    await wait_until(has_continued)
    held.set()
    receipt = await handle.result()
    session = clew.session(receipt["session_id"])
    assert receipt["request_id"] == handle.id
    assert [entry.payload["status"] async for entry in session.read(kind="run")] == ["completed"]


@pytest.mark.slow
@pytest.mark.long
async def test_a_scheduled_request_survives_the_death_of_its_worker(stack: Stack, schedule_id: str) -> None:
    """SIGKILL while the model is called: another worker goes on, and the message is in the thread once."""
    queue = f"queue-{uuid.uuid4().hex}"
    own = Clew(stack.clew.temporal, queue)
    called, held = asyncio.Event(), asyncio.Event()

    async def hold(_body: dict[str, Any]) -> Reply:
        called.set()
        await held.wait()
        return Reply("done")

    schedules, session_id = Schedules(own), f"test-{uuid.uuid4().hex}"
    config: Any = {"model": stack.add_model(hold)}
    async with run_worker_process(stack, queue) as first:
        await schedules.create(schedule_id, "tick", session_id=session_id, config=config, **NEVER)
        await schedules.trigger(schedule_id)
        await called.wait()
        await first.kill()
        held.set()
        async with run_worker_process(stack, queue):
            receipt = await get_run(own, await wait_for_runs(schedules, schedule_id)).result()
            kinds = [entry.kind async for entry in own.read_thread(session_id)]
    assert receipt["outcome"]["status"] == "completed"
    assert kinds == ["config", "ai_message", "ai_message", "run"]


async def test_the_hour_that_a_clock_skips_has_no_time(clew: Clew, schedule_id: str) -> None:
    """A time within it is left out on that day, as the page says; one of a repeated hour is used once."""
    schedules = Schedules(clew)
    for start, day in ((datetime(2027, 3, 27, tzinfo=UTC), 28), (datetime(2027, 10, 30, tzinfo=UTC), 31)):
        times: Any = {"start_at": start, "end_at": start + timedelta(days=3), "cron": "30 2 * * *"}
        await schedules.create(schedule_id, "tick", session_id="s", time_zone="Europe/Berlin", **times)
        next_times = (await schedules.show(schedule_id)).next
        await schedules.delete(schedule_id)
        assert sum(at.day == day for at in next_times) == (0 if start.month == 3 else 1)
