"""Checkpoints and the sessions that are made of them."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import urlsafe_b64decode
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Interceptor,
    OutboundInterceptor,
    StartWorkflowUpdateInput,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from clew import Clew, ContextPolicy, Session
from clew.errors import (
    Busy,
    CheckpointUnavailable,
    Refusal,
    RequestReused,
    TokenExpired,
    TokenMismatch,
    TooLarge,
    UnknownLane,
    WorkerUnavailable,
)
from clew.local import Reply, ToolCall
from clew_activities import checkpoint_signing
from clew_activities.checkpoint_signing import Keys
from clew_workflows.contract.messages import Message
from clew_workflows.protocol import RolloverThresholds
from tests.support import toolbox
from tests.support.encrypted import needs_plain
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message, serve


def read_payload(token: str) -> dict[str, Any]:
    """Read a token's payload without verifying it."""
    body = token.split(".")[1]
    value: dict[str, Any] = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return value


async def read_conversation(session: Session) -> list[Message]:
    """A session's context, without the ids of its tool calls, which are its own."""
    messages = (await session.context()).messages
    for message in messages:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", []):
            call["id"] = "…"
    return messages


async def measure_history(session: Session) -> int:
    history = await session._handle.client.get_workflow_handle(session.id).fetch_history()
    return sum(event.ByteSize() for event in history.events)


def reply_with_sum(body: dict[str, Any]) -> Reply:
    """Call `add` if the user asks for it, else reply with the number of messages."""
    if get_last_message(body)["content"] == "add":
        return Reply(tool_calls=(ToolCall("add", {"a": 2**60 + 1, "b": 2}),))
    return Reply(f"{len(body['messages'])} messages")


@pytest.mark.slow
@needs_plain
async def test_a_session_goes_on_from_a_checkpoint(stack: Stack) -> None:
    """The restored session has context and configuration and ids of its own; the first session continues."""
    settings: dict[str, Any] = {
        "tools": ["add"],
        "require_approval": [],
        "system_prompt": "Be brief.",
        "max_iterations": 4,
        "context_policy": ContextPolicy(max_input_tokens=5000, reserve_output_tokens=500),
        "model_options": {"temperature": 0.5},
        "metadata": {"tenant": "t-1"},
    }
    session = await stack.open(reply_with_sum, **settings)
    assert await session.ask("add") == "4 messages"
    token = await session.checkpoint()
    branch = await stack.clew.restore(token, make_id())
    assert await read_conversation(branch) == await read_conversation(session)
    assert await branch.ask("add") == "8 messages"
    assert await session.ask("on") == "6 messages"
    ids = [call["id"] for message in (await branch.context()).messages for call in message.get("tool_calls", [])]
    assert len(ids) == len(set(ids)) == 2
    (config, *_) = await branch.entries(kind="config")
    (before, *_) = await session.entries(kind="config")
    assert config.payload == before.payload
    (operation,) = await branch.entries(kind="ai_context_operation")
    assert operation.payload["operation"]["reason"] == "restore"
    assert operation.payload["operation"]["meta"] == {
        "session_id": session.id,
        "at_seq": read_payload(token)["at_seq"],
    }
    described = await stack.clew.temporal.get_workflow_handle(branch.id).describe()
    assert not described.raw_description.execution_config.workflow_execution_timeout.seconds


@needs_plain
async def test_a_checkpoint_holds_a_context_and_no_thread(stack: Stack) -> None:
    """Messages that the policy leaves out are not in the token."""
    policy = ContextPolicy(max_input_tokens=300, reserve_output_tokens=100, keep_last_turns=1)
    session = await stack.open("fine", context_policy=policy)
    for number in range(8):
        await session.ask(f"secret {number} " + "word " * 50)
    token = await session.checkpoint(expires_seconds=60)
    payload = read_payload(token)
    assert "thread" not in payload
    assert "secret 7" in json.dumps(payload)
    assert "secret 0" not in json.dumps(payload)
    assert payload["exp"] - payload["iat"] == 60


async def test_another_lane_is_checkpointed_and_active_where_it_is_restored(stack: Stack) -> None:
    session = await stack.open(reply_with_sum)
    await session.ask("one")
    await session.replace_context(
        [{"role": "user", "content": "drawn"}], op_id="o", context_ref="draft", system_prompt=""
    )
    token = await session.checkpoint("draft")
    branch = await stack.clew.restore(token)
    assert (await branch.status()).active_context_ref == "draft"
    assert (await branch.context()).messages == [{"role": "user", "content": "drawn"}]
    with pytest.raises(UnknownLane):
        await session.checkpoint("nowhere")


async def test_a_busy_session_is_not_checkpointed(stack: Stack) -> None:
    """During a run a checkpoint is refused."""
    release, called = asyncio.Event(), asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await release.wait()
        return Reply("fine")

    session = await stack.open(script)
    request = await session.message("go")
    await called.wait()
    with pytest.raises(Busy):
        await session.checkpoint()
    release.set()
    await request.result()
    assert await session.checkpoint()


@pytest.mark.slow
async def test_a_context_that_is_too_large_is_refused(stack: Stack) -> None:
    """The limit is the size of a snapshot, so that each token can be restored."""
    session = await stack.open("fine", context_policy=ContextPolicy(max_input_tokens=200_000))
    parts = [{"role": "user", "content": "x" * 120_000}, {"role": "assistant", "content": "y" * 120_000}]
    await session.replace_context(parts, op_id="o-1")
    before = await measure_history(session)
    token = await session.checkpoint()
    assert await measure_history(session) - before < len(token) + 5_000, (
        "the history holds the token once, and no more"
    )
    branch = await stack.clew.restore(token)
    assert [len(message["content"]) for message in (await branch.context()).messages] == [120_000, 120_000]
    await session.ask("z" * 30_000)
    before = (await session.status()).rev
    with pytest.raises(TooLarge):
        await session.checkpoint()
    assert (await session.status()).rev == before


@pytest.mark.slow
async def test_an_id_that_exists_is_not_restored_to(stack: Stack) -> None:
    """Neither over a session that runs nor over one that has ended; a token may be restored any number of times."""
    session = await stack.open("fine")
    await session.ask("hi")
    token = await session.checkpoint()
    for _ in range(2):
        assert await (await stack.clew.restore(token)).ask("on") == "fine"
    for ended in (False, True):
        if ended:
            await session.close()
        rev = (await session.status()).rev
        with pytest.raises(RequestReused, match="already"):
            await stack.clew.restore(token, session.id)
        assert (await session.status()).rev == rev


@pytest.mark.slow
async def test_a_restore_is_repeated_without_a_second_effect(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, later, after the token has expired and after the session has ended: it is the same session."""
    session = await stack.open("fine")
    await session.ask("hi")
    token, new_id = await session.checkpoint(), make_id()
    branches = await asyncio.gather(*(stack.clew.restore(token, new_id) for _ in range(3)))
    assert {branch.id for branch in branches} == {new_id}
    branch = branches[0]
    assert await branch.ask("on") == "fine"
    expired = read_payload(token)["exp"]
    monkeypatch.setattr(checkpoint_signing, "time", SimpleNamespace(time=lambda: expired))
    with pytest.raises(TokenExpired):
        await stack.clew.restore(token)
    for end in (None, "hibernate", "close"):
        if end:
            await getattr(await stack.clew.open(new_id), end)()
        thread = await branch.entries()
        assert (await stack.clew.restore(token, new_id)).id == new_id
        assert await branch.entries() == thread
        operations = [entry for entry in thread if entry.kind == "ai_context_operation"]
        assert [entry.payload["operation"]["reason"] for entry in operations] == ["restore"]


@pytest.mark.slow
@pytest.mark.parametrize("between", [None, "hibernate", "close", "roll over"])
async def test_a_restore_that_was_not_finished_is_finished_by_a_repetition(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, between: str | None
) -> None:
    """The session that it has started may have ended or rolled over meanwhile, and takes no other token."""
    session = await stack.open(reply_with_sum)
    await session.ask("one")
    await session.replace_context([{"role": "user", "content": "drawn"}], op_id="o", context_ref="draft")
    token, other = await session.checkpoint("draft"), await session.checkpoint()
    apply = checkpoint_signing._apply_operation

    async def fail(session_id: str, operation: dict[str, Any]) -> None:
        if operation["operation"]["type"] == "switch":
            raise ApplicationError("it is away", type="worker_unavailable", non_retryable=True)
        await apply(session_id, operation)

    async with run_rolling_worker(stack, RolloverThresholds(events=10_000, bytes=10**7, updates=5)) as clew:
        with monkeypatch.context() as failing:
            failing.setattr(checkpoint_signing, "_apply_operation", fail)
            with pytest.raises(WorkerUnavailable) as caught:
                await clew.restore(token)
        named = re.search("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(caught.value))
        assert named
        begun = clew.session(named[0])
        match between:
            case "hibernate":
                await begun.hibernate()
            case "close":
                await begun.close()
            case "roll over":
                while len(await list_runs(clew, begun.id)) < 2:
                    await begun.configure(context_policy=ContextPolicy(keep_last_turns=9))
        with pytest.raises(RequestReused):
            await clew.restore(other, begun.id)
        branch, same = await asyncio.gather(*(clew.restore(token, begun.id) for _ in range(2)))
        assert (branch.id, same.id) == (begun.id, begun.id)
        assert (await branch.status()).active_context_ref == "draft"
        assert (await branch.context()).messages == [{"role": "user", "content": "drawn"}]
        kinds = [entry.payload["operation"]["type"] for entry in await branch.entries(kind="ai_context_operation")]
        assert kinds == ["replace", "switch"]


class DropsFirst(Interceptor, OutboundInterceptor):
    """Drops the first context operation like a paused worker, which completes its task without the update."""

    def __init__(self) -> None:
        self.dropped = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        OutboundInterceptor.__init__(self, next)
        return self

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        if input.update == "submit_context_operation" and not self.dropped:
            self.dropped += 1
            raise WorkflowUpdateFailedError(ApplicationError("it was not processed", type="UnprocessedUpdate"))
        return await super().start_workflow_update(input)


async def test_a_restore_survives_a_worker_that_pauses(stack: Stack) -> None:
    """The operation is sent again, as every update of a client is."""
    session, dropping = await stack.open("fine"), DropsFirst()
    await session.ask("hi")
    token = await session.checkpoint()
    clew = await Clew.connect(stack.server.address, task_queue=f"queue-{make_id()}", interceptors=[dropping])
    async with serve(clew, stack.environ):
        branch = await clew.restore(token)
        assert dropping.dropped == 1
        assert [message["content"] for message in (await branch.context()).messages] == ["hi", "fine"]


@pytest.mark.slow
async def test_a_restore_is_not_repeated_by_other_sessions(stack: Stack) -> None:
    """An empty session and a fork of the restored one are other sessions, although the fork has its entries."""
    session = await stack.open("fine")
    token = await session.checkpoint()
    branch = await stack.clew.restore(token)
    for other in (await stack.open("fine"), await branch.fork()):
        with pytest.raises(RequestReused):
            await stack.clew.restore(token, other.id)


async def test_a_checkpoint_is_refused_where_it_does_not_belong(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired token and one for other tools start no session; the caller gets a typed error."""
    session = await stack.open("fine", tools=["add"])
    token, short = await session.checkpoint(), await session.checkpoint(expires_seconds=1)
    wanted = make_id()
    await asyncio.sleep(1.5)
    with pytest.raises(TokenExpired):
        await stack.clew.restore(short, wanted)
    with pytest.raises(Refusal):
        await stack.clew.session(wanted).status()
    with monkeypatch.context() as patch:
        patch.setitem(toolbox.add.spec, "description", "Another thing.")
        with pytest.raises(TokenMismatch):
            await stack.clew.restore(token)
    assert await (await stack.clew.restore(token)).ask("on") == "fine"


async def test_without_a_key_there_are_no_checkpoints(stack: Stack) -> None:
    """A worker without keys neither makes nor restores checkpoints, and the session continues."""
    session = await stack.open("fine")
    token = await session.checkpoint()
    async with run_rolling_worker(stack, keys=Keys()) as clew:
        there = await clew.open(make_id(), model=stack.add_model("fine"))
        with pytest.raises(CheckpointUnavailable, match="CLEW_CHECKPOINT_KEYS"):
            await there.checkpoint()
        with pytest.raises(CheckpointUnavailable, match="CLEW_CHECKPOINT_KEYS"):
            await clew.restore(token)
        assert await there.ask("on") == "fine"


@pytest.mark.slow
async def test_a_lane_that_is_archived_is_checkpointed_whole(stack: Stack) -> None:
    """The session fetches the lane's archived entries first."""
    async with run_rolling_worker(
        stack, RolloverThresholds(events=50, bytes=100_000, updates=10, signals=10)
    ) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("in the default lane")
        await session.switch_context("draft", op_id="o-1")
        turn = 0
        while (await session.status()).first_live_seq < 5:
            turn += 1
            await session.ask(f"turn {turn} {'.' * 3000}")
        branch = await clew.restore(await session.checkpoint("default"))
        said = [message["content"] for message in (await branch.context()).messages]
        assert said == ["in the default lane", "fine"]


@pytest.mark.parametrize(
    "arguments",
    [
        *([], [None], [{}], ["text"], [{"token": 1}], [{"token": "t", "more": 1}]),
        [{"token": "t", "session_id": "a b"}],
        [RawValue(Payload(metadata={"encoding": b"no/such"}, data=b"\xff"))],
        [RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"\xff"))],
    ],
)
async def test_a_malformed_restoration_fails_at_once_with_its_word(stack: Stack, arguments: list[Any]) -> None:
    """No task of it fails again and again."""
    with pytest.raises(WorkflowFailureError) as failed:
        await stack.clew.temporal.execute_workflow(
            "RestoreSession", args=arguments, id=make_id(), task_queue=stack.clew.task_queue
        )
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "invalid_input"
