"""The order of model calls that wait for a slot, on a real server, and the priorities that the server is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from clew import Agent, Clew
from clew.local import Reply, ToolCall, scripted_model, temporal_server
from clew.local.scripted import Script
from clew_activities.archive import Store
from clew_activities.worker import Capacity
from clew_workflows.contract.config import make_fairness_key
from clew_workflows.contract.names import name_model_queue
from tests.support.cluster import ONE_PARTITION, find_cluster
from tests.support.rolling import OFTEN, SlowModel, list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import wait_until

FLOOD = [f"flood-{number}" for number in range(20)]


class Line:
    """Model calls that wait for the only slot of a worker. The call of `hold` has it until `serve`."""

    def __init__(self, clew: Clew, stack: Stack) -> None:
        self._clew = clew
        self._model = SlowModel()
        self._name = stack.add_model(self._model)
        self._waiting = 0

    async def hold(self) -> None:
        """Let a call take the slot."""
        await self._send("first", None, {})
        await self._model.wait_for_call()

    async def add(self, *names: str, priority: int | None = None, **metadata: str) -> None:
        """Let new sessions call their model, each with its name, and wait until the calls wait for the slot."""
        await asyncio.gather(*(self._send(name, priority, metadata) for name in names))
        self._waiting += len(names)
        await wait_until(self._is_complete)

    async def serve(self) -> list[str]:
        """Answer all calls; returns the names of those that waited, in the order in which the worker took them."""
        self._model.release(1 + self._waiting)
        bodies = [await self._model.wait_for_call() for _ in range(self._waiting)]
        return [get_last_message(body)["content"] for body in bodies]

    async def _send(self, name: str, priority: int | None, metadata: Mapping[str, str]) -> None:
        session = await self._clew.open(make_id(), model=self._name, priority=priority, metadata=metadata)
        await session.message(name)

    async def _is_complete(self) -> bool:
        temporal = self._clew.temporal
        answer = await temporal.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=temporal.namespace,
                task_queue=TaskQueue(name=name_model_queue(self._clew.task_queue)),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
                report_stats=True,
            )
        )
        return answer.stats.approximate_backlog_count >= self._waiting


@pytest.fixture(scope="module")
async def single(stack: Stack) -> AsyncIterator[Stack]:
    """Run a server whose task queues have one partition, and scripted models."""
    if find_cluster():
        yield stack
        return
    scripts: dict[str, Script] = {}
    async with (
        temporal_server(ui=False, dynamic_config=ONE_PARTITION) as server,
        scripted_model(lambda body: scripts[body["model"]](body)) as provider,
    ):
        yield Stack(await Clew.connect(server.address), server, provider, scripts, Store.from_url("memory://"))


@asynccontextmanager
async def run_line(stack: Stack) -> AsyncIterator[Line]:
    """Run a worker with one slot for model calls, which is taken."""
    async with run_rolling_worker(stack, capacity=Capacity(model_calls=1)) as clew:
        line = Line(clew, stack)
        await line.hold()
        yield line


@pytest.mark.slow
async def test_a_user_does_not_wait_for_all_calls_of_another(single: Stack) -> None:
    """Of each user the server takes one call in turn, in whichever order they came."""
    async with run_line(single) as line:
        await line.add(*FLOOD, user="flood")
        await line.add("ada", user="ada")
        await line.add("bob", user="bob")
        order = await line.serve()
    assert len(order) == len(FLOOD) + 2
    assert max(order.index("ada"), order.index("bob")) <= 4


@pytest.mark.slow
async def test_users_of_one_tenant_share_its_turn(single: Stack) -> None:
    """A tenant gets no more for having many users."""
    async with run_line(single) as line:
        await asyncio.gather(*(line.add(name, tenant="flood", user=name) for name in FLOOD))
        await line.add("ada", user="ada")
        order = await line.serve()
    assert order.index("ada") <= 3


async def test_calls_of_a_higher_priority_are_taken_first(single: Stack) -> None:
    """Also those of a user with many calls. A batch job that came first is served last."""
    async with run_line(single) as line:
        await line.add("batch-1", "batch-2", priority=5, user="batch")
        await line.add("chat-1", "chat-2", user="ada")
        await line.add("urgent", priority=1, user="ada")
        order = await line.serve()
    assert [name.partition("-")[0] for name in order] == ["urgent", "chat", "chat", "batch", "batch"]


async def list_priorities(clew: Clew, session_id: str) -> set[tuple[int, str]]:
    """List the priority and the fairness key of a session's workflow runs, their activities and their subagents."""
    listed = set()
    for run_id in await list_runs(clew, session_id):
        history = await clew.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        for event in history.events:
            attributes = getattr(event, event.WhichOneof("attributes") or "")
            if "priority" in attributes.DESCRIPTOR.fields_by_name:
                listed.add((attributes.priority.priority_key, attributes.priority.fairness_key))
    return listed


@pytest.mark.slow
async def test_all_that_a_session_starts_has_its_priority(stack: Stack) -> None:
    """After a rollover, too; a change of the configuration changes what comes after it."""
    key = make_fairness_key("ada")
    async with run_rolling_worker(stack, OFTEN) as clew:
        model = stack.add_model("fine")
        session = await clew.open(make_id(), model=model, priority=4, metadata={"user": "ada"})

        async def has_rolled_over() -> bool:
            await session.ask("hello")
            return len(await list_runs(clew, session.id)) > 1

        await wait_until(has_rolled_over)
        assert await list_priorities(clew, session.id) == {(4, key)}
        await session.configure(priority=5, metadata={"tenant": "acme"})
        await session.ask("hello")
        assert (5, make_fairness_key("acme")) in await list_priorities(clew, session.id)
        assert (await session.entries(kind="config"))[-1].payload["priority"] == 5


@pytest.mark.slow
async def test_a_subagent_has_the_fairness_key_of_its_parent(stack: Stack) -> None:
    """Also if that is the parent's own: a session gets no more for having many subagents."""
    clew = make_client(stack)

    def delegate(body: dict[str, Any]) -> Reply:
        last = body["messages"][-1]
        return (
            Reply(last["content"])
            if last["role"] == "tool"
            else Reply(tool_calls=[ToolCall("helper", {"task": "x"})])
        )

    helper = Agent("helper", model=stack.add_model("done"), priority=5)
    boss = Agent("boss", model=stack.add_model(delegate), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        assert await session.ask("go") == "done"
        key = make_fairness_key(session.id)
        assert await list_priorities(clew, session.id) == {(3, key)}
        # The worker resolves the agent, and so its priority, with the first activity.
        assert await list_priorities(clew, f"{session.id}.tool00001") == {(3, key), (5, key)}


@pytest.mark.slow
async def test_a_fork_counts_for_its_own_tenant(stack: Stack) -> None:
    """Without a tenant or a user in its metadata it is one of its own, as every session is."""
    session = await stack.open("fine")
    await session.ask("hello")
    fork = await session.fork()
    assert await list_priorities(stack.clew, fork.id) == {(3, make_fairness_key(fork.id))}
