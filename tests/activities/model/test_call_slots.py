"""Model calls on the sessions' own task queue: workers that serve both make them, and leave room for others."""

from __future__ import annotations

import asyncio

from temporalio.api.enums.v1 import EventType

from clew import Request, Session
from clew_activities.worker import Capacity
from clew_workflows.contract.names import name_model_queue
from tests.support.rolling import SlowModel, list_model_queues, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until


async def test_a_call_follows_the_workers(stack: Stack) -> None:
    """Workers for sessions alone decline it; the session remembers that, and a new one is told."""
    model = stack.add_model("fine")
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=model)
        assert await session.ask("1") == "fine"
    async with (
        run_rolling_worker(stack, task_queue=clew.task_queue, serves=["sessions", "tools"]),
        run_rolling_worker(stack, task_queue=clew.task_queue, serves=["models"]),
    ):
        assert await session.ask("2") == "fine"
        assert await session.ask("3") == "fine"
        newer = await clew.open(make_id(), model=model)
        assert await newer.ask("1") == "fine"
    own, models = clew.task_queue, name_model_queue(clew.task_queue)
    assert await list_model_queues(stack.clew, session) == [own, own, models, models]
    assert await list_model_queues(stack.clew, newer) == [models]
    assert len(stack.list_requests(model)) == 4


async def test_temporal_hands_over_a_call_with_its_workflow_task(stack: Stack) -> None:
    """The server starts the call in the transaction that takes the task's commands: no dispatch lies between."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for number in range(3):
            await session.ask(f"{number}")
        waits = await list_waits(stack, session)
    assert min(waits) < 1_000_000


async def list_waits(stack: Stack, session: Session) -> list[int]:
    """List the nanoseconds between a model call's scheduling and its start."""
    history = await stack.clew.temporal.get_workflow_handle(session.id).fetch_history()
    events = {event.event_id: event for event in history.events}
    starts = [event for event in events.values() if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED]
    waits = []
    for start in starts:
        scheduled = events[start.activity_task_started_event_attributes.scheduled_event_id]
        if scheduled.activity_task_scheduled_event_attributes.activity_type.name == "call_model":
            waits.append(start.event_time.ToNanoseconds() - scheduled.event_time.ToNanoseconds())
    return waits


async def test_calls_that_hang_leave_room_for_what_is_short(stack: Stack) -> None:
    """A worker makes half of its calls directly; sessions can be opened and changed while they and others wait."""
    model, slots = SlowModel(), 2
    name = stack.add_model(model)
    async with run_rolling_worker(stack, capacity=Capacity(model_calls=2 * slots, store_calls=1)) as clew:
        sessions = [await clew.open(make_id(), model=name) for _ in range(2 * slots + 1)]
        requests = [await session.message("hello") for session in sessions]
        for _ in range(2 * slots):
            await model.wait_for_call()
        assert model.called.empty()
        other = await clew.open(make_id(), model=stack.add_model("fine"), system_prompt="Be kind.")
        assert (await other.configure(system_prompt="Be brief.")).status == "applied"
        model.release(len(requests))
        assert await asyncio.gather(*(request.answer() for request in requests)) == ["re: hello"] * len(requests)
        queues = [await list_model_queues(stack.clew, session) for session in sessions]
    own, models = clew.task_queue, name_model_queue(clew.task_queue)
    assert sorted(queues) == sorted([[own]] * slots + [[own, models]] * (slots + 1))


async def test_no_call_goes_ahead_of_those_that_wait(stack: Stack) -> None:
    """When a direct call ends, its room is for the queue's calls, and a new call waits behind them."""
    model = SlowModel()
    name = stack.add_model(model)
    async with run_rolling_worker(stack, capacity=Capacity(model_calls=2)) as clew:

        async def send(text: str) -> tuple[Session, Request]:
            session = await clew.open(make_id(), model=name)
            return session, await session.message(text)

        sent = [await send("direct"), await send("queued")]
        assert {get_last_message(await model.wait_for_call())["content"] for _ in sent} == {"direct", "queued"}
        sent += [await send("waits")]
        model.release()
        assert get_last_message(await model.wait_for_call())["content"] == "waits"
        sent += [await send("new")]

        async def is_declined() -> bool:
            return await list_model_queues(clew, sent[-1][0]) == [clew.task_queue, name_model_queue(clew.task_queue)]

        await wait_until(is_declined)
        assert model.called.empty()
        model.release(3)
        assert [await request.answer() for _, request in sent] == ["re: direct", "re: queued", "re: waits", "re: new"]
