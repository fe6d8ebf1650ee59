"""Webhooks on a real server: what receivers are told, once, whatever happens to workers and receivers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from clew import Clew, Session
from clew.contract import WORKFLOW_TYPE, Webhook
from clew.errors import InvalidInput, RequestFailed
from clew.local import Reply, ToolCall
from clew_activities.archive import Store
from clew_activities.worker import make_workflow_sandbox
from clew_workflows.contract.names import DELIVERY_PREFIX
from clew_workflows.host.agent_session import AgentSession
from clew_workflows.host.services import DeliverWebhook
from clew_workflows.protocol import RolloverThresholds
from tests.support.encrypted import make_encryption, read_history_bytes
from tests.support.processes import open_session_on, run_worker_process
from tests.support.rolling import list_runs, run_rolling_worker
from tests.support.stack import Stack, get_last_message, make_client, serve
from tests.support.waiting import wait_until
from tests.support.webhooks import SECRET, SETTINGS, Receiver, find_free_port, listen, receive

QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_interval=timedelta(milliseconds=200))


@pytest.fixture(scope="module", autouse=True)
def quick_retries() -> Any:
    """Repeat deliveries soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeliverWebhook, "retries", QUICK)
        yield


@pytest.fixture(scope="module")
async def hooked(stack: Stack) -> AsyncIterator[Clew]:
    """A worker that sends to receivers on this machine."""
    async with serve(make_client(stack), stack.environ, store=stack.store, webhooks=SETTINGS) as clew:
        yield clew


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receive() as receiver:
        yield receiver


async def open_session(stack: Stack, clew: Clew, script: Any = "fine", **config: Any) -> Session:
    return await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model(script), **config)


async def test_an_outcome_is_told(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """A receiver is told of the end of a request: its ids, seqs and usage, and no text."""
    session = await open_session(stack, hooked, "a secret answer", webhooks=[receiver.make_webhook()])
    assert await session.ask("a secret question", request_id="r1") == "a secret answer"
    (told,) = await receiver.wait_for(1)
    outcome = await session.request("r1").result()
    assert told.type == "request.ended"
    assert (told.data.session_id, told.data.request_id, told.data.status) == (session.id, "r1", "completed")
    assert (told.data.seq, told.data.answer_seq, told.data.usage) == (
        outcome.last_seq,
        outcome.answer_seq,
        outcome.usage,
    )
    assert "secret" not in told.model_dump_json()


def order_once(body: dict[str, Any]) -> Reply:
    """Call a tool whose result comes from outside, and one that also needs approval."""
    calls = (ToolCall("order", {"item": "tea"}), ToolCall("order_guarded", {"item": "gold"}, "c1"))
    return Reply(tool_calls=calls) if get_last_message(body)["role"] == "user" else Reply("done")


async def test_waits_for_people_and_programs_are_told_once(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """Each call that waits is told once, by its id and its tool, also where it waits for both."""
    session = await open_session(
        stack, hooked, order_once, tools=["order", "order_guarded"], webhooks=[receiver.make_webhook()]
    )
    request = await session.message("go")
    told = await receiver.wait_for(2)
    named = {
        message.type: [(call.tool_call_id, call.name) for call in message.data.tool_calls or ()] for message in told
    }
    assert named == {
        "approval.wanted": [("tool00002", "order_guarded")],
        "external_call.waiting": [("tool00001", "order")],
    }
    await session.approve("tool00002")
    guarded = (await receiver.wait_for(3))[2]
    assert guarded.type == "external_call.waiting"
    assert [call.tool_call_id for call in guarded.data.tool_calls or ()] == ["tool00002"]
    for call in ("tool00001", "tool00002"):
        await session.submit_tool_result(call, "here")
    assert await request.answer() == "done"
    await receiver.wait_for(4)
    assert receiver.count_types() == {"approval.wanted": 1, "external_call.waiting": 2, "request.ended": 1}
    assert "gold" not in str(receiver.attempts)


async def test_a_receiver_gets_the_events_that_it_wants(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """A limit of the session is told as such, and the failure by its type alone."""
    async with receive() as other:
        session = await open_session(
            stack,
            hooked,
            limits={"max_total_tokens": 1},
            webhooks=[receiver.make_webhook("limit.reached"), other.make_webhook("request.ended")],
        )
        await session.ask("one")
        with pytest.raises(RequestFailed):
            await session.ask("two", request_id="r2")
        (limit,) = await receiver.wait_for(1)
        ended = await other.wait_for(2)
    assert (limit.type, limit.data.request_id, limit.data.termination_reason) == (
        "limit.reached",
        "r2",
        "token_limit",
    )
    failed = next(message for message in ended if message.data.status == "failed")
    assert failed.data.error
    assert failed.data.error.type == "token_limit"
    assert receiver.count_types() == {"limit.reached": 1}


async def test_a_receiver_that_is_down_gets_the_event_later(stack: Stack, hooked: Clew) -> None:
    """The session answers, closes and is archived meanwhile. Every attempt has the same id."""
    answers = [503, 500, 302, 204]
    receiver = Receiver(find_free_port(), lambda _message: answers.pop(0))
    session = await open_session(stack, hooked, webhooks=[receiver.make_webhook()])
    assert await session.ask("hello") == "fine"
    await session.close()
    delivery = await find_delivery(hooked, session)
    async with listen(receiver):
        await receiver.wait_for(1)
        assert (await delivery.result())["deliveries"][0]["status"] == 204
    assert [attempt.status for attempt in receiver.attempts] == [503, 500, 302, 204]
    assert len({attempt.id for attempt in receiver.attempts}) == 1


async def test_a_receiver_that_is_gone_is_asked_once(stack: Stack, hooked: Clew) -> None:
    """An answer of 410 ends the delivery, which operators find as a failed workflow. The session is unharmed."""
    async with receive(lambda _message: 410) as gone:
        session = await open_session(stack, hooked, webhooks=[gone.make_webhook()])
        await session.ask("hello")
        with pytest.raises(WorkflowFailureError) as failed:
            await (await find_delivery(hooked, session)).result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert (failed.value.cause.type, len(gone.attempts)) == ("webhook_failed", 1)
    assert "webhook_gone" in failed.value.cause.message
    assert await session.ask("again") == "fine"


async def find_delivery(clew: Clew, session: Session) -> WorkflowHandle[Any, Any]:
    """Find the workflow that delivers the first event of a session, as operators do."""
    history = await clew.temporal.get_workflow_handle(session.id).fetch_history()
    started = [
        event.start_child_workflow_execution_initiated_event_attributes.workflow_id
        for event in history.events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    assert started[0].startswith(f"{DELIVERY_PREFIX}{session.id}/msg_")
    return clew.temporal.get_workflow_handle(started[0], result_type=dict)


async def test_a_hanging_receiver_delays_nothing(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """Turns, hibernation and a rollover do not wait for a receiver."""
    receiver.holds = asyncio.Event()
    often = RolloverThresholds(events=50, bytes=200_000, updates=40, signals=60)
    async with run_rolling_worker(stack, often, webhooks=SETTINGS) as clew:
        session = await open_session(stack, clew, webhooks=[receiver.make_webhook()])
        for number in range(6):
            assert await session.ask(f"{number}", request_id=f"r{number}") == "fine"
        assert len(await list_runs(clew, session.id)) > 1
        await session.hibernate()
        assert not receiver.attempts
        receiver.holds.set()
        told = await receiver.wait_for(6)
        assert sorted(message.data.request_id for message in told) == [f"r{number}" for number in range(6)]
        assert len({attempt.id for attempt in receiver.attempts}) == 6
        # The session goes on from its archive, and tells nothing twice.
        again = await clew.open(session.id)
        assert await again.ask("7", request_id="r7") == "fine"
        assert [message.data.request_id for message in (await receiver.wait_for(7))[6:]] == ["r7"]


@pytest.mark.slow
@pytest.mark.long
async def test_a_delivery_survives_the_death_of_its_worker(stack: Stack, receiver: Receiver) -> None:
    """SIGKILL while the receiver hangs: another worker sends the same message again."""
    receiver.holds = asyncio.Event()
    queue = f"queue-{uuid.uuid4().hex}"
    settings = {"CLEW_WEBHOOK_SECRET_MAIN": SECRET, "CLEW_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    async with run_worker_process(stack, queue, **settings) as first:
        session = await open_session_on(stack, queue, "fine", webhooks=[receiver.make_webhook()])
        await session.ask("hello", request_id="r1")
        await wait_until(lambda: receiver.waiting)
        await first.kill()
        async with run_worker_process(stack, queue, **settings):
            receiver.holds.set()
            await wait_until(lambda: len(receiver.attempts) == 2)
    assert [message.data.request_id for message in receiver.list_taken()] == ["r1", "r1"]
    assert len({attempt.id for attempt in receiver.attempts}) == 1


async def test_a_session_with_webhooks_replays(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """The histories of a session and of its delivery replay, and tell nobody anything."""
    session = await open_session(stack, hooked, webhooks=[receiver.make_webhook()])
    await session.ask("hello")
    await receiver.wait_for(1)
    delivery = await find_delivery(hooked, session)
    await delivery.result()
    await session.close()
    replayer = Replayer(
        workflows=[AgentSession, DeliverWebhook],
        data_converter=hooked.temporal.data_converter,
        workflow_runner=make_workflow_sandbox(),
    )
    for workflow_id in (session.id, delivery.id):
        await replayer.replay_workflow(await hooked.temporal.get_workflow_handle(workflow_id).fetch_history())
    assert len(receiver.attempts) == 1


async def test_histories_hold_no_secret_and_lists_no_deliveries(
    stack: Stack, hooked: Clew, receiver: Receiver
) -> None:
    """The secret is the workers' alone. A delivery is found by its memo, and not among sessions."""
    session = await open_session(stack, hooked, webhooks=[receiver.make_webhook()])
    await session.ask("hello")
    await receiver.wait_for(1)
    delivery = await find_delivery(hooked, session)
    await delivery.result()
    for workflow_id in (session.id, delivery.id):
        history = await hooked.temporal.get_workflow_handle(workflow_id).fetch_history()
        assert SECRET.removeprefix("whsec_") not in history.to_json()
    assert await (await delivery.describe()).memo() == {"session_id": session.id, "event": "request.ended"}
    listed = [summary.session_id async for summary in hooked.sessions(query=f'WorkflowId STARTS_WITH "{session.id}"')]
    assert all(not each.startswith(DELIVERY_PREFIX) for each in listed)


async def test_workers_have_webhooks_for_all_sessions(stack: Stack, receiver: Receiver) -> None:
    """A session without webhooks of its own tells those of the worker; one that both name is told once."""
    own = replace(SETTINGS, webhooks=(receiver.make_webhook("request.ended"),))
    async with serve(make_client(stack), stack.environ, store=stack.store, webhooks=own) as clew:
        plain = await open_session(stack, clew)
        both = await open_session(stack, clew, webhooks=[receiver.make_webhook("request.ended")])
        for session in (plain, both):
            await session.ask("hello")
        told = await receiver.wait_for(2)
        assert {message.data.session_id for message in told} == {plain.id, both.id}
        assert (await plain.status()).config["webhooks"] == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "example.com",
        "https://",
        "https://user:password@example.com/",
        "https://example.com/#part",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "file:///etc/passwd",
    ],
)
async def test_what_is_no_url_of_a_webhook_is_refused_at_the_door(stack: Stack, url: str) -> None:
    """The client and a session that is started without it refuse it alike."""
    webhook = {"url": url, "secret": "main"}
    with pytest.raises(InvalidInput):
        await stack.open("fine", webhooks=[webhook])
    start = {"config": {"model": "scripted:m0", "webhooks": [webhook]}}
    handle = await stack.clew.temporal.start_workflow(
        WORKFLOW_TYPE, start, id=f"test-{uuid.uuid4().hex}", task_queue=stack.clew.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "invalid_input"


@pytest.mark.parametrize(
    "webhook",
    [
        Webhook(url="https://10.0.0.1/", secret="main"),
        Webhook(url="https://[::ffff:192.168.0.1]/", secret="main"),
        Webhook(url="https://example.com/", secret="other"),
    ],
)
async def test_a_webhook_that_the_workers_do_not_send_to_is_reported(
    stack: Stack, hooked: Clew, webhook: Webhook
) -> None:
    """Requests fail before a model is called, until the configuration is corrected."""
    session = await open_session(stack, hooked, webhooks=[webhook])
    with pytest.raises(RequestFailed) as failed:
        await session.ask("hello")
    assert failed.value.outcome.error
    assert failed.value.outcome.error.type == "invalid_input"
    assert not stack.list_requests((await session.status()).model)
    await session.configure(webhooks=[])
    assert await session.ask("hello") == "fine"


async def test_the_deliveries_of_a_session_are_deleted_with_it(
    stack: Stack, hooked: Clew, receiver: Receiver
) -> None:
    """No history has the usage of a session that was deleted. One whose name differs by its case keeps its own."""
    session = await open_session(stack, hooked, webhooks=[receiver.make_webhook()])
    model = stack.add_model("fine")
    other = await hooked.open(session.id.upper(), model=model, webhooks=[receiver.make_webhook()])
    for each in (session, other):
        await each.ask("hello")
    await receiver.wait_for(2)
    delivery, kept = [await find_delivery(hooked, each) for each in (session, other)]
    for each_delivery in (delivery, kept):
        await each_delivery.result()

    async def list_deliveries() -> set[str]:
        query = f'WorkflowId IN ("{delivery.id}", "{kept.id}") AND ExecutionStatus = "Completed"'
        return {run.id async for run in hooked.temporal.list_workflows(query)}

    async def are_listed() -> bool:
        return await list_deliveries() == {delivery.id, kept.id}

    await wait_until(are_listed)
    await hooked.delete(session.id)

    async def is_gone() -> bool:
        return await list_deliveries() == {kept.id}

    await wait_until(is_gone)
    await kept.describe()


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_the_end_of_a_session_is_told(stack: Stack, hooked: Clew, receiver: Receiver, end: str) -> None:
    """A request that ends with its session has an outcome like any other, also if Temporal cancels the workflow."""
    called = asyncio.Event()

    async def hang(_body: dict[str, Any]) -> Reply:
        called.set()
        return Reply("word " * 1000, tokens_per_second=5)

    session = await open_session(stack, hooked, hang, webhooks=[receiver.make_webhook()])
    await session.message("hello", request_id="r1")
    await called.wait()
    if end == "close":
        await session.close()
    else:
        await hooked.temporal.get_workflow_handle(session.id).cancel()
    (told,) = await receiver.wait_for(1)
    assert (told.data.request_id, told.data.status) == ("r1", "cancelled")


async def test_a_session_knows_the_webhooks_that_it_has(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """The `config` entry and the status have them; opening the session again with the same ones ignores nothing."""
    webhook = receiver.make_webhook()
    session = await open_session(stack, hooked, webhooks=[webhook])
    model = (await session.status()).model
    again = await hooked.open(session.id, model=model, webhooks=[webhook])
    assert again.ignored == {}
    other = await hooked.open(session.id, model=model, webhooks=[receiver.make_webhook("limit.reached")])
    assert list(other.ignored) == ["webhooks"]
    (entry,) = [entry async for entry in session.read(kind="config")]
    assert entry.payload["webhooks"] == [{"url": webhook.url, "secret": "main"}]


async def test_what_a_delivery_stores_is_encrypted(stack: Stack, receiver: Receiver) -> None:
    """Where sessions are encrypted, no history shows the URL of a webhook or what it is told."""
    encryption = make_encryption("k1")
    queue = f"encrypted-{uuid.uuid4().hex}"
    connection = await Clew.connect(stack.server.address, task_queue=queue, encryption=encryption)
    store = Store.from_url("memory://", sealer=encryption.sealer)
    async with serve(connection, stack.environ, store=store, webhooks=SETTINGS) as clew:
        session = await open_session(stack, clew, webhooks=[receiver.make_webhook()])
        await session.ask("hello")
        await receiver.wait_for(1)
        delivery = await find_delivery(clew, session)
        await delivery.result()
        for workflow_id in (session.id, delivery.id):
            history = await read_history_bytes(clew.temporal.get_workflow_handle(workflow_id))
            assert str(receiver.port).encode() not in history
            assert b"request.ended" not in history
            assert b"final_answer" not in history
