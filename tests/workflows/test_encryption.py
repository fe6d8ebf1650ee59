"""Sessions whose texts are encrypted: what the server stores, and what happens where a key is missing."""

from __future__ import annotations

import asyncio
import gc
import io
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from clew import Clew, Session
from clew.errors import ArchiveUnavailable, ClewError, InvalidInput, NotEncrypted, UnknownKey, UnknownTool
from clew.local import Reply
from clew.session.events import Retrying
from clew_activities.archive import Archive, Store
from clew_audit.audit import audit_session
from clew_audit.exports import export_session, import_session
from clew_workflows.encryption import Encryption
from tests.support.archives import read_files
from tests.support.encrypted import Reversing, connect, make_encryption, read_history_bytes, run_worker
from tests.support.rolling import wait_for_failed_task
from tests.support.stack import Stack
from tests.support.viewers import watch
from tests.support.waiting import wait_until

ACCEPTED = WorkflowUpdateStage.ACCEPTED


@pytest.fixture(scope="module")
async def encrypted(stack: Stack) -> AsyncIterator[Stack]:
    """Run a worker that encrypts with `k1` and decrypts `k2` too."""
    async with run_worker(stack, make_encryption("k1", "k2")) as running:
        yield running


async def read_kinds(session: Session) -> list[tuple[str, object]]:
    """Read the kinds of a session's entries, and their reasons."""
    return [(entry.kind, entry.payload.get("reason")) for entry in await session.entries()]


async def test_no_text_is_in_the_history(encrypted: Stack) -> None:
    """Neither inputs nor answers, of the session and of its activities; refusals stay typed."""
    session = await encrypted.open(
        "a secret answer", system_prompt="a secret prompt", metadata={"title": "a secret title", "note": "secret"}
    )
    reply = await session.message("a secret question")
    assert await reply.answer() == "a secret answer"
    with pytest.raises(InvalidInput, match="no model call"):
        await session.context(call_id="nope")
    with pytest.raises(UnknownTool, match="secret_tool"):
        await session.configure(require_approval=["secret_tool"])
    handle = encrypted.clew.temporal.get_workflow_handle(session.id)
    history = await read_history_bytes(handle)
    assert len(history) > 5000
    assert b"secret" not in history


async def test_heartbeats_and_answers_of_queries_are_encrypted(encrypted: Stack) -> None:
    """The server sees neither a reply that grows, which it keeps, nor what a session answers, which it passes on."""
    session = await encrypted.open(lambda _body: Reply("a secret answer " * 40, tokens_per_second=30))
    request = await session.message("go")
    client = encrypted.clew.temporal
    handle = client.get_workflow_handle(session.id)
    beats: list[Payload] = []

    async def has_heartbeat() -> bool:
        for pending in (await handle.describe()).raw_description.pending_activities:
            beats.extend(pending.heartbeat_details.payloads)
        return bool(beats)

    # While a viewer follows, heartbeats show the reply soon.
    async with watch(session):
        await wait_until(has_heartbeat)
    query = QueryWorkflowRequest(namespace=client.namespace, execution=WorkflowExecution(workflow_id=session.id))
    query.query.query_type = "status"
    answer = await client.workflow_service.query_workflow(query)
    for payload in (*beats, *answer.query_result.payloads):
        assert payload.metadata["encoding"] == b"binary/encrypted"
        assert b"secret" not in payload.data
    await session.cancel()
    await request.result()


@pytest.mark.slow
async def test_a_codec_of_ones_own_serves_a_session(stack: Stack, tmp_path: Path) -> None:
    """Its turns, archive and audit. A client with keys instead is told so."""
    own = Encryption(own_codec=Reversing(), accepts_plain=False)
    store = Store.from_url(tmp_path.as_uri(), sealer=own.sealer)
    async with run_worker(stack, own, store=store) as encrypted:
        session = await encrypted.open("a secret answer", system_prompt="a secret prompt")
        assert await session.ask("a secret question") == "a secret answer"
        await session.hibernate()
        handle = encrypted.clew.temporal.get_workflow_handle(session.id)
        assert b"secret" not in await read_history_bytes(handle)
        files = read_files(tmp_path)
        assert files
        assert not [path for path, data in files.items() if b"secret" in data]

        again = await encrypted.clew.open(session.id)
        assert await again.ask("another question") == "a secret answer"
        report = await audit_session(encrypted.clew.temporal, Archive(store, "default"), session.id)
        assert report.clean, report.differences
        with pytest.raises(UnknownKey, match="CLEW_ENCRYPTION_CODEC"):
            await (await connect(encrypted, make_encryption("k1"))).session(session.id).status()
        await again.close()


async def test_rotation_needs_no_pause(encrypted: Stack) -> None:
    """Clients with either key reach the session; what one has encrypted the other reads."""
    session = await encrypted.open("fine")
    newer = (await connect(encrypted, make_encryption("k2", "k1"))).session(session.id)
    assert await (await newer.message("one")).answer() == "fine"
    assert await (await session.message("two")).answer() == "fine"
    texts = [entry.payload.get("content") for entry in await newer.entries(kind="ai_message")]
    assert texts == ["one", "fine", "two", "fine"]


async def test_a_client_without_the_key_is_told_which(encrypted: Stack) -> None:
    """It cannot read an answer; what it sends is refused, and nothing is recorded of it but a refused signal."""
    session = await encrypted.open("fine")
    await (await session.message("one")).answer()
    keyless = await connect(encrypted, make_encryption())
    foreign = await connect(encrypted, make_encryption("k3", "k1"))
    with pytest.raises(UnknownKey, match="k1"):
        await keyless.session(session.id).status()
    with pytest.raises(UnknownKey, match="'k1'"):
        await keyless.session(session.id).message("plain")
    with pytest.raises(UnknownKey, match="the worker cannot decrypt the input"):
        await foreign.session(session.id).message("two")
    for client in (keyless, foreign):
        handle = client.temporal.get_workflow_handle(session.id)
        await handle.signal("steer", {"content": "a steer"})
    assert await (await session.message("three")).answer() == "fine"
    refused = [entry.payload["reason"] for entry in await session.entries(kind="input")]
    assert [reason.partition(":")[0] for reason in refused] == [
        "the input is not encrypted",
        "the worker cannot decrypt the input",
    ]


@pytest.mark.parametrize(("kids", "error"), [((), "not_encrypted"), (("k3", "k1"), "unknown_key")])
async def test_a_start_that_cannot_be_read_is_refused(encrypted: Stack, kids: tuple[str, ...], error: str) -> None:
    """The workflow fails with the refusal, and is not tried for ever."""
    client = await connect(encrypted, make_encryption(*kids))
    session = await client.open(f"test-{uuid.uuid4().hex}", model=encrypted.add_model("fine"))
    handle = encrypted.clew.temporal.get_workflow_handle(session.id)
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, ApplicationError)
    assert raised.value.cause.type == error
    # A worker replays it to answer this.
    with pytest.raises((NotEncrypted, UnknownKey)):
        await encrypted.clew.session(session.id).status()


async def test_during_a_migration_plain_inputs_are_accepted(stack: Stack) -> None:
    """Sessions and clients of before go on; their new texts are encrypted as soon as the worker has the keys."""
    async with run_worker(stack, make_encryption()) as before:
        session = await before.open("a secret answer")
        await (await session.message("one")).answer()
    accepting = make_encryption("k1", accepts_plain=True)
    async with run_worker(stack, accepting, task_queue=before.clew.task_queue, store=before.store):
        keyed = await connect(before, make_encryption("k1"))
        assert len(await keyed.session(session.id).entries(kind="ai_message")) == 2
        handle = before.clew.temporal.get_workflow_handle(session.id)
        await handle.start_update("message", {"content": "plain"}, wait_for_stage=ACCEPTED)
        assert await (await keyed.session(session.id).message("two", on_busy="queue")).answer() == "a secret answer"


@pytest.mark.slow
async def test_a_worker_without_the_key_leaves_the_session_to_another(stack: Stack) -> None:
    """It can neither answer nor end the session: the task waits for a worker with the key, and nothing is lost."""
    async with run_worker(stack, make_encryption("k1")) as first:
        session = await first.open("fine")
        await (await session.message("one")).answer()
        queue, store = first.clew.task_queue, first.store
    client = await connect(first, make_encryption("k2", "k1"))
    async with run_worker(stack, make_encryption("k2"), task_queue=queue, store=store):
        with pytest.raises(ClewError, match="'k1', which this process does not have"):
            await client.session(session.id).status()
        sending = asyncio.ensure_future(client.session(session.id).message("two"))
        await wait_for_failed_task(client, session.id)
    async with run_worker(stack, make_encryption("k2", "k1"), task_queue=queue, store=store):
        assert await (await sending).answer() == "fine"
        texts = [
            entry.payload.get("content") for entry in await client.session(session.id).entries(kind="ai_message")
        ]
        assert texts == ["one", "fine", "two", "fine"]
    # The failed tasks leave no coroutine that was never awaited: its warning would be an error here.
    gc.collect()


async def test_a_refusal_is_replayed_by_workers_with_the_key(stack: Stack) -> None:
    """The thread is the same on every worker: the refusal is recorded."""
    async with run_worker(stack, make_encryption("k1")) as first:
        session = await first.open("fine")
        await (await session.message("one")).answer()
        foreign = await connect(first, make_encryption("k2"))
        handle = foreign.temporal.get_workflow_handle(session.id)
        await handle.signal("steer", {"content": "a steer"})
        await (await session.message("two")).answer()
        before = await read_kinds(session)
        queue, store = first.clew.task_queue, first.store
    async with run_worker(stack, make_encryption("k1", "k2"), task_queue=queue, store=store):
        assert await read_kinds(session) == before
        await handle.signal("steer", {"content": "a steer"})
        assert await (await session.message("three")).answer() == "fine"


@pytest.mark.slow
async def test_exports_and_checkpoints_are_encrypted(encrypted: Stack) -> None:
    """What callers keep outside is as unreadable as what is inside, and each is read with the key."""
    session = await encrypted.open("a secret answer", system_prompt="a secret prompt")
    await (await session.message("a secret question")).answer()
    token = await session.checkpoint()
    assert b"secret" not in b64decode(token.partition(".")[2], altchars="-_")
    restored = await encrypted.clew.restore(token)
    assert "a secret question" in str((await restored.context()).messages)
    keyless = await connect(encrypted, make_encryption("k2"))
    with pytest.raises(UnknownKey, match="'k1'"):
        await keyless.restore(token)
    with pytest.raises(UnknownKey, match="was changed"):
        await encrypted.clew.restore(token[:-8] + "AAAAAAA=")

    await session.hibernate()
    archive, client = Archive(encrypted.store, "default"), encrypted.clew.temporal
    file = io.BytesIO()
    count = await export_session(client, archive, session.id, file)
    assert b"secret" not in file.getvalue()
    file.seek(0)
    imported, _ = await import_session(
        client, archive, file, session_id=f"{session.id}-2", task_queue=encrypted.clew.task_queue
    )
    assert len(await encrypted.clew.session(imported).entries()) >= count
    report = await audit_session(client, archive, session.id)
    assert report.clean, report.differences
    assert report.calls.verified == 1


async def test_a_viewer_learns_why_an_attempt_failed(encrypted: Stack) -> None:
    """The server keeps the message of an attempt's failure, as long as it is, until the next attempt has ended."""
    reason = "the queue of the model is full " * 40
    replies = [Reply(reason, status=HTTPStatus.SERVICE_UNAVAILABLE), Reply("at last")]
    session = await encrypted.open(lambda _body: replies.pop(0))
    request = await session.message("go")
    (retrying,) = [event async for event in request.events() if isinstance(event, Retrying)]
    assert retrying.error == "provider_unavailable"
    assert reason.strip() in retrying.message


async def list_inputs(session: Session, client: Clew, name: str) -> list[Payload]:
    """List the arguments of a session's accepted updates of a name, and of its signals, as the server stores them."""
    handle = client.temporal.get_workflow_handle(session.id)
    found: list[Payload] = []
    async for event in handle.fetch_history_events():
        accepted = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        signaled = event.workflow_execution_signaled_event_attributes
        if accepted.name == name:
            found += accepted.args.payloads
        if signaled.signal_name == name:
            found += signaled.input.payloads
    return found


class Copying(PayloadCodec):
    """The codec of a party without keys: it sends payloads that it has copied, as they are."""

    def __init__(self, *copies: Payload) -> None:
        self.copies = copies

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Send the copies instead."""
        return [*self.copies] if payloads else []

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Read nothing."""
        return [Payload(metadata={"encoding": b"json/plain"}, data=b"{}") for _ in payloads]


async def copy(stack: Stack, *copies: Payload) -> Client:
    """Connect a party without keys, whose inputs are these copies."""
    converter = replace(pydantic_data_converter, payload_codec=Copying(*copies))
    return await Client.connect(stack.server.address, data_converter=converter)


async def read_refusal(sending: Awaitable[object]) -> str | None:
    """Return the word of the refusal of an update."""
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await sending
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.type


async def test_a_copied_input_is_not_carried_out_again(encrypted: Stack) -> None:
    """Neither a change of configuration that was taken back, nor a message under another Update id, nor a signal."""
    session = await encrypted.open("fine", tools=["add"])
    await session.configure(tools=["add", "book"])
    await session.configure(tools=["add"])
    assert await session.ask("one") == "fine"
    handle = encrypted.clew.temporal.get_workflow_handle(session.id)
    await handle.signal("steer", {"content": "a steer"})
    gave, _ = await list_inputs(session, encrypted.clew, "configure")
    (message,) = await list_inputs(session, encrypted.clew, "message")
    await session.hibernate()
    session = await encrypted.clew.open(session.id)
    before = len(await session.entries(kind="ai_message"))
    for name, payload in (("configure", gave), ("message", message)):
        copier = (await copy(encrypted, payload)).get_workflow_handle(session.id)
        assert await read_refusal(copier.execute_update(name, {})) == "repeated"
        await copier.signal(name, {})
    assert (await session.status()).config["tools"] == ["add"]
    assert len(await session.entries(kind="ai_message")) == before
    assert await session.ask("two") == "fine"


async def test_the_text_of_an_activity_is_no_input(encrypted: Stack) -> None:
    """A party without the key cannot send a session what a model or a tool has written, or read."""
    session = await encrypted.open("fine")
    assert await session.ask("one") == "fine"
    handle = encrypted.clew.temporal.get_workflow_handle(session.id)
    texts = [
        payload
        async for event in handle.fetch_history_events()
        for payload in event.activity_task_completed_event_attributes.result.payloads
    ]
    assert texts
    for payload in texts:
        copier = (await copy(encrypted, payload)).get_workflow_handle(session.id)
        assert await read_refusal(copier.execute_update("message", {})) == "unknown_key"


@pytest.mark.parametrize("name", ["summarize", "cancel", "close_session", "hibernate"])
async def test_an_input_without_an_argument_is_not_encrypted(encrypted: Stack, name: str) -> None:
    """A party without the key would otherwise end a session, or have it pay for a summary."""
    session = await encrypted.open("fine")
    assert await session.ask("one") == "fine"
    handle = encrypted.clew.temporal.get_workflow_handle(session.id)
    assert await read_refusal(handle.execute_update(name)) == "not_encrypted"
    await handle.signal("close")
    assert await session.ask("two") == "fine"


@workflow.defn(name="Intruder", sandboxed=False)
class Intruder:
    """Starts a session as its child, as a party without the key can with a worker of its own."""

    @workflow.run
    async def run(self, session_id: str, queue: str, argument: dict[str, Any]) -> None:
        """Start the session."""
        await workflow.start_child_workflow(
            "AgentSession",
            argument,
            id=session_id,
            task_queue=queue,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )


async def test_a_child_that_is_not_encrypted_is_refused(encrypted: Stack) -> None:
    """A session that another workflow starts as its child needs the key like any other."""
    keyless, session_id = await connect(encrypted, make_encryption()), f"test-{uuid.uuid4().hex}"
    argument = {"config": {"model": encrypted.add_model("fine")}}
    child = encrypted.clew.temporal.get_workflow_handle(session_id)

    async def has_started() -> bool:
        with suppress(RPCError):
            return bool(await child.describe())
        return False

    async with Worker(keyless.temporal, task_queue=session_id, workflows=[Intruder]):
        parent = await keyless.temporal.start_workflow(
            "Intruder",
            args=[session_id, encrypted.clew.task_queue, argument],
            id=f"{session_id}-parent",
            task_queue=session_id,
        )
        await wait_until(has_started)
    with pytest.raises(WorkflowFailureError) as raised:
        await child.result()
    # It cannot read how its child has failed, and waits for ever if it is told before it ends.
    with suppress(RPCError):
        await parent.terminate()
    assert isinstance(raised.value.cause, ApplicationError)
    assert raised.value.cause.type == "not_encrypted"


@pytest.mark.slow
async def test_an_object_that_is_not_encrypted_is_not_believed(stack: Stack, tmp_path: Path) -> None:
    """A party that writes the store and has no key cannot give a session a past of its own making."""
    encryption, plain = make_encryption("k1"), Store.from_url((tmp_path / "plain").as_uri())
    async with run_worker(stack, make_encryption(), store=plain) as forging:
        forged = await forging.clew.open("victim", model=forging.add_model("forged"), system_prompt="obey me")
        await forged.ask("one")
        await forged.hibernate()
    sealed = Store.from_url((tmp_path / "sealed").as_uri(), sealer=encryption.sealer)
    async with run_worker(stack, encryption, store=sealed) as encrypted:
        session = await encrypted.clew.open("victim-2", model=encrypted.add_model("fine"))
        await session.hibernate()
        for path, data in read_files(tmp_path / "plain").items():
            target = tmp_path / "sealed" / str(path.relative_to(tmp_path / "plain")).replace("victim", "victim-2")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.replace(b"victim", b"victim-2"))
        with pytest.raises(ArchiveUnavailable):
            await (await encrypted.clew.open("victim-2")).ask("two")
