"""Every field of every command, set and not empty, over real sessions: no workflow task fails, and all replays."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateStage
from temporalio.common import RawValue
from temporalio.worker import Replayer

from clew import Agent, Clew, ContextPolicy, Session
from clew.contract import WORKFLOW_TYPE, SessionConfig
from clew.local import Reply, ToolCall
from clew_activities.model.model_table import OwnModels, OwnPrice
from clew_activities.worker import make_workflow_sandbox
from clew_workflows.host.agent_session import AgentSession
from clew_workflows.host.handlers import SIGNALS, UPDATES
from tests.support.every_field import list_inputs
from tests.support.hostile_input import is_harm
from tests.support.rolling import SlowModel, list_runs, make_id
from tests.support.scenarios import wait_until_idle
from tests.support.stack import Stack, get_last_message, make_client, serve
from tests.support.waiting import wait_until
from tests.support.webhooks import SETTINGS, Receiver, receive

HELPER = "every-field-helper"
TOOL = {"type": "object", "properties": {"item": {"type": "string"}}}
OTHER_LANE = "other"


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    """A deployment with an agent, and prices for the scripted models."""
    clew = make_client(stack)
    helper = Agent(HELPER, model=stack.add_model(answer), tools=["add"])
    free = OwnPrice(input=0, output=0)
    async with serve(
        clew,
        stack.environ,
        agents=(helper,),
        store=stack.store,
        webhooks=SETTINGS,
        own_models=OwnModels(prices={"scripted:*": free}),
    ):
        yield clew


def answer(body: dict[str, Any]) -> Reply:
    """Call a tool if the user names it, or answer."""
    newest = get_last_message(body)
    if newest["role"] == "user" and "guarded" in newest["content"]:
        return Reply(tool_calls=(ToolCall("guarded", {}),))
    if newest["role"] == "user" and "order" in newest["content"]:
        return Reply(tool_calls=(ToolCall("order", {"item": "tea"}),))
    return Reply("{}")


REPLIES = [
    {
        "role": "assistant",
        "content": "I look",
        "tool_calls": [{"id": "call1", "name": "add", "arguments": {"a": 1, "b": 2}}],
        "provider_data": {"provider": "other", "blocks": [{"type": "text"}], "calls": [{}], "model": "m"},
    },
    {"role": "tool", "content": "3", "tool_call_id": "call1", "name": "add"},
]


class Walk:
    """Sessions that get inputs of every shape.

    Attributes:
        examples: Valid values of the fields whose types do not say what is valid.
    """

    def __init__(self, stack: Stack, clew: Clew, receiver: Receiver) -> None:
        self.clew = clew
        self.add_model = stack.add_model
        self._sessions: list[Session] = []
        self._numbers = itertools.count()
        self.examples: dict[str, Any] = {
            "agent": HELPER,
            "model": stack.add_model(answer),
            "fallbacks": [stack.add_model(answer)],
            "summarization_model": stack.add_model(answer),
            "tools": ["add"],
            "require_approval": ["add"],
            "parameters": TOOL,
            "output_schema": {"type": "object"},
            "arguments": {},
            "tool_choice": "auto",
            "provider_options": {"openai": {"user": "me"}},
            "projector": "default",
            "window": "epoch",
            "max_input_tokens": 50_000,
            "reserve_output_tokens": 100,
            "low_water": 0.25,
            "include_kinds": ["message", "tool_call", "tool_result", "summary"],
            "max_message_bytes": 200_000,
            "max_total_tokens": 10_000_000,
            "strategy": "react",
            "encoding": "cl100k_base",
            "max_iterations": 5,
            "timeout_seconds": 100,
            "request_timeout_seconds": 100,
            "idle_timeout_seconds": 10_000,
            "token_estimator": "exact",
            "webhooks": [receiver.make_webhook("request.ended").model_dump(mode="json")],
            "reason": "compaction",
            "seqs": [1],
            "from_seq": 1,
            "to_seq": 2,
            "base_seq": 1,
            "context_ref": OTHER_LANE,
            "messages": [{"role": "user", "content": "hello", "refs": {"message": "m-1"}}, *REPLIES],
            "replies": REPLIES,
        }

    def list_inputs(self, model: type[BaseModel], **examples: Any) -> Iterator[dict[str, Any]]:
        """List inputs of a type. Each has ids of its own: a repeated one has no effect."""
        for name, fields in list_inputs(model, self.examples | examples):
            own = {
                key: f"{key}-{next(self._numbers)}"
                for key in ("request_id", "input_id", "op_id")
                if key in fields and key not in examples
            }
            print(name)  # noqa: T201 - the report of a failure has the name of its input
            yield fields | own

    async def open(self, script: Any = answer, **config: Any) -> Session:
        """Open a session that is checked at the end."""
        chosen = {"model": self.add_model(script), "tools": ["add", "guarded", "order"]} | config
        return self.check(await self.clew.open(make_id(), **chosen))

    def check(self, session: Session) -> Session:
        """Note a session that is to be checked at the end."""
        self._sessions.append(session)
        return session

    async def update(self, session: Session, name: str, fields: dict[str, Any]) -> Any:
        """Send an update, and return its answer as JSON."""
        handle = self.clew.temporal.get_workflow_handle(session.id)
        raw: RawValue = await handle.execute_update(name, fields, result_type=RawValue)
        return json.loads(raw.payload.data)

    async def start_update(self, session: Session, name: str, fields: dict[str, Any]) -> None:
        """Send an update, and wait until it is accepted."""
        handle = self.clew.temporal.get_workflow_handle(session.id)
        await handle.start_update(name, fields, wait_for_stage=WorkflowUpdateStage.ACCEPTED)

    async def send(self, session: Session, name: str, fields: dict[str, Any]) -> None:
        """Send an update or a signal."""
        if name in UPDATES:
            await self.update(session, name, fields)
        else:
            await self.clew.temporal.get_workflow_handle(session.id).signal(name, fields)

    def list_operations(self, model: type[BaseModel]) -> Iterator[dict[str, Any]]:
        """List context operations: a switch names its lane."""
        for fields in self.list_inputs(model):
            is_pin = fields["operation"]["type"] in ("pin", "unpin")
            yield {"context_ref": OTHER_LANE} | fields | ({"context_ref": "default"} if is_pin else {})

    async def list_refused(self, session: Session) -> list[Any]:
        """List the inputs that a session has refused."""
        return [
            entry.payload for entry in await session.entries(kind="input") if entry.payload["event"] == "rejected"
        ]

    async def is_waiting(self, session: Session) -> bool:
        """Whether a call waits for a decision, or for its result from outside."""
        status = await session.status()
        return bool(status.pending_approvals or status.pending_external_calls)

    async def has_ended(self, session: Session) -> bool:
        """Whether the workflow of a session has ended."""
        status = (await self.clew.temporal.get_workflow_handle(session.id).describe()).status
        return status != WorkflowExecutionStatus.RUNNING

    async def finish(self) -> None:
        """Assert that each session answers, that no workflow task has failed, and that each workflow run replays."""
        replayer = Replayer(
            workflows=[AgentSession],
            data_converter=self.clew.temporal.data_converter,
            workflow_runner=make_workflow_sandbox(),
        )
        for session in self._sessions:
            reopened = await self.clew.open(session.id, model=self.examples["model"])
            await reopened.ask("still there?", on_busy="queue", tools=[], timeout_seconds=20)
            executions = self.clew.temporal.list_workflows(
                f"WorkflowId = '{session.id}' and WorkflowType = '{WORKFLOW_TYPE}'"
            )
            runs = {execution.run_id async for execution in executions} | set(await list_runs(self.clew, session.id))
            for run_id in runs:
                handle = self.clew.temporal.get_workflow_handle(session.id, run_id=run_id)
                history = await handle.fetch_history()
                harm = [event for event in history.events if is_harm(event)]
                assert not harm, harm
                await replayer.replay_workflow(history)


@pytest.fixture
async def walk(stack: Stack, clew: Clew) -> AsyncIterator[Walk]:
    async with receive() as receiver:
        yield Walk(stack, clew, receiver)


@pytest.mark.slow
async def test_every_field_of_a_configuration(walk: Walk) -> None:
    """Each starts a session, changes an idle and a busy one, and is carried over, forked and restored."""
    full = await walk.open(**next(walk.list_inputs(SessionConfig)))
    await full.ask("hello", tools=[])
    session = await walk.open()
    for fields in walk.list_inputs(UPDATES["configure"].input):
        await walk.update(session, "configure", fields)
    slow = SlowModel(answer)
    await session.configure(model=walk.add_model(slow))
    request = await session.message("wait", tools=[])
    await slow.wait_for_call()
    for fields in walk.list_inputs(UPDATES["configure"].input):
        assert (await walk.update(session, "configure", fields))["status"] == "deferred"
    slow.release()
    await request.result()
    await wait_until_idle(session)
    token = await session.checkpoint()
    walk.check(await walk.clew.restore(token))
    walk.check(await session.fork(at_seq=(await session.status()).rev - 1))
    await session.hibernate()
    await walk.finish()


@pytest.mark.slow
async def test_every_field_of_a_message(walk: Walk) -> None:
    """Each is accepted by an idle session, and ends with an outcome."""
    session = await walk.open()
    for fields in walk.list_inputs(UPDATES["message"].input):
        outcome = await walk.update(session, "message", fields)
        assert outcome["status"] == "completed", outcome
        await walk.update(session, "await_request", {"request_id": outcome["request_id"]})
    await walk.finish()


@pytest.mark.slow
async def test_every_field_of_an_input(walk: Walk) -> None:
    """Each is accepted by a busy session, by the update and by the signals, and enters its run."""
    slow = SlowModel(answer)
    session = await walk.open(slow)
    request = await session.message("wait")
    await slow.wait_for_call()
    for name in ("submit_input", "steer", "inject"):
        for fields in walk.list_inputs((UPDATES | SIGNALS)[name].input, expected_request_id=request.request_id):
            await walk.send(session, name, fields)
    for fields in walk.list_inputs(UPDATES["message"].input, on_busy="steer", request_id="joining"):
        if fields.keys() <= {"content", "on_busy", "metadata", "refs"}:
            await walk.start_update(session, "message", fields | {"on_busy": "steer"})
    slow.release(1000)
    await request.result()
    assert not await walk.list_refused(session)
    await walk.finish()


@pytest.mark.slow
async def test_every_field_of_a_context_operation(walk: Walk) -> None:
    """Each operation is accepted by an idle and by a busy session, by the update and by the signal."""
    slow = SlowModel(answer)
    session = await walk.open(slow)
    slow.release(1)
    await session.ask("hello")
    request = None
    for busy in (False, True):
        if busy:
            request = await session.message("wait", on_busy="queue")
        for name in ("submit_context_operation", "modify_context"):
            for fields in walk.list_operations(UPDATES["submit_context_operation"].input):
                await walk.send(session, name, fields)
    slow.release(1000)
    assert request
    await request.result()
    assert not await walk.list_refused(session)
    await walk.finish()


@pytest.mark.slow
async def test_every_field_of_an_answer_to_a_call(walk: Walk) -> None:
    """Each decision, each result from outside, and each cancellation of a waiting call is accepted."""
    session = await walk.open()
    for name, text in (
        ("resolve_approval", "guarded"),
        ("submit_tool_result", "order"),
        ("cancel_request", "order"),
        ("cancel", "order"),
    ):
        for fields in walk.list_inputs((UPDATES | SIGNALS)[name].input, request_id="the", tool_call_id="the"):
            request = await session.message(text)
            await wait_until(lambda: walk.is_waiting(session))
            status = await session.status()
            calls = [call.tool_call_id for call in (*status.pending_approvals, *status.pending_external_calls)]
            names = {"tool_call_id": calls[0], "request_id": request.request_id}
            await walk.send(session, name, fields | {key: value for key, value in names.items() if key in fields})
            await request.result()
    assert not await walk.list_refused(session)
    await walk.finish()


@pytest.mark.slow
async def test_every_field_of_the_other_commands(walk: Walk) -> None:
    """Summaries, checkpoints, hibernation, closing, and the signals that Clew itself sends."""
    session = await walk.open()
    for fields in walk.list_inputs(UPDATES["summarize"].input, context_ref="default"):
        session = await walk.open(context_policy=ContextPolicy(keep_last_turns=0))
        await session.ask("hello")
        await walk.update(session, "summarize", fields)
    for fields in walk.list_inputs(UPDATES["checkpoint"].input, context_ref="default"):
        await walk.update(session, "checkpoint", fields)
    for name in ("move", "forked", "late_result", "subagent_result"):
        for fields in walk.list_inputs(SIGNALS[name].input):
            await walk.send(session, name, fields)
    for name in ("hibernate", "close_session", "close"):
        for fields in walk.list_inputs((UPDATES | SIGNALS)[name].input):
            await walk.send(session, name, fields)
            await wait_until(partial(walk.has_ended, session))
            session = await walk.clew.open(session.id, model=walk.examples["model"])
    await walk.finish()


def test_every_command_is_walked() -> None:
    """A new update or signal needs its place in this module."""
    walked = {
        *("configure", "message", "await_request", "submit_input", "steer", "inject", "submit_context_operation"),
        *("modify_context", "resolve_approval", "submit_tool_result", "cancel_request", "cancel", "summarize"),
        *("checkpoint", "move", "forked", "late_result", "subagent_result", "hibernate", "close_session", "close"),
    }
    assert walked == {*UPDATES, *SIGNALS}
