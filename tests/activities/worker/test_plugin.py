"""Sessions on a team's own worker: both work, and the team's values are encoded as before."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHistory
from temporalio.common import VersioningBehavior
from temporalio.converter import DataConverter, DefaultPayloadConverter
from temporalio.worker import Replayer, Worker, WorkerDeploymentConfig, WorkerTuner

from clew import Clew, tool
from clew.errors import UnknownKey
from clew.local import Reply, TemporalServer, ToolCall, scripted_model
from clew.worker import ClewPlugin

with workflow.unsafe.imports_passed_through():
    from clew_workflows.contract.names import name_model_queue
    from tests.support.encrypted import make_encryption, read_history_bytes, write_keys
    from tests.support.rolling import list_model_queues
    from tests.support.versions import list_queues, make_version, read_version, set_current

TUNER = WorkerTuner.create_fixed(activity_slots=10)


@dataclass
class Order:
    """A team's own value."""

    number: str


class MarkingConverter(DefaultPayloadConverter):
    """A team's own converter: it marks what it encodes."""

    def to_payloads(self, values: Any) -> list[Payload]:
        payloads = super().to_payloads(values)
        for payload in payloads:
            payload.metadata["team"] = b"ours"
        return payloads


@activity.defn
async def ship(order: Order) -> Order:
    return Order(f"{order.number}, shipped")


@workflow.defn
class Shipping:
    """A team's own workflow."""

    @workflow.run
    async def run(self, order: Order) -> Order:
        return await workflow.execute_activity(ship, order, start_to_close_timeout=timedelta(seconds=10))


@tool
def find_order(number: str) -> str:
    """Find an order."""
    return f"order {number} is on its way"


def call_the_tool(body: dict[str, Any]) -> Reply:
    newest = body["messages"][-1]
    if newest["role"] == "tool":
        return Reply(newest["content"])
    return Reply(tool_calls=(ToolCall("find_order", {"number": "7"}),))


@pytest.mark.slow
async def test_a_teams_workflow_and_a_session_share_a_worker(server: TemporalServer) -> None:
    """The session calls a model and a tool, the workflow its activity; both histories replay with the plugin."""
    queue = f"team-{uuid.uuid4().hex}"
    converter = DataConverter(payload_converter_class=MarkingConverter)
    client = await Client.connect(server.address, data_converter=converter)
    async with scripted_model(call_the_tool) as model:
        environ = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url}
        plugin = ClewPlugin(tools=[find_order], store="memory://", environ=environ)
        async with Worker(client, task_queue=queue, workflows=[Shipping], activities=[ship], plugins=[plugin]):
            shipping = await client.start_workflow(Shipping.run, Order("7"), id=f"shipping-{queue}", task_queue=queue)
            assert await shipping.result() == Order("7, shipped")

            clew = await Clew.connect(server.address, task_queue=queue)
            session = await clew.open(f"session-{queue}", model="scripted:any", tools=["find_order"])
            assert await session.ask("Where is order 7?") == "order 7 is on its way"
            await session.close()

    histories = [await shipping.fetch_history(), await clew.temporal.get_workflow_handle(session.id).fetch_history()]
    assert [read_marks(history) for history in histories] == [{b"ours"}, {b""}]
    replayer = Replayer(workflows=[Shipping], plugins=[ClewPlugin()], data_converter=converter)
    for history in histories:
        await replayer.replay_workflow(history)


async def test_the_plugin_may_be_the_clients(server: TemporalServer) -> None:
    """Every worker of a client that has the plugin serves sessions; its model calls are polled once."""
    queue = f"team-{uuid.uuid4().hex}"
    async with scripted_model(lambda body: Reply("Hello!")) as model:
        plugin = ClewPlugin(store="memory://", environ={"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url})
        client = await Client.connect(server.address, plugins=[plugin])
        async with Worker(client, task_queue=queue):
            session = await Clew(client, queue).open(f"session-{queue}", model="scripted:any")
            assert await session.ask("Hello?") == "Hello!"
            await session.close()


@pytest.mark.parametrize("slots", [{}, {"max_concurrent_activities": 1}, {"tuner": TUNER}])
async def test_model_calls_take_at_most_half_of_a_teams_slots(server: TemporalServer, slots: dict[str, Any]) -> None:
    """Further ones have the plugin's own workers, and all where the slots cannot be counted or halved."""
    queue = f"team-{uuid.uuid4().hex}"
    client = await Client.connect(server.address)
    async with scripted_model(lambda body: Reply("Hello!")) as model:
        plugin = ClewPlugin(store="memory://", environ={"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url})
        async with Worker(client, task_queue=queue, plugins=[plugin], **slots):
            clew = await Clew.connect(server.address, task_queue=queue)
            session = await clew.open(f"session-{queue}", model="scripted:any")
            assert await session.ask("Hello?") == "Hello!"
            own_or_models = name_model_queue(queue) if slots else queue
            assert await list_model_queues(clew, session) == [own_or_models]
            await session.close()


async def test_a_teams_version_is_that_of_all_its_workers(server: TemporalServer) -> None:
    """The workers of the model calls have it, too; without a behavior of the team's, sessions are pinned."""
    queue = f"team-{uuid.uuid4().hex}"
    client = await Client.connect(server.address)
    clew = Clew(client, queue)
    async with scripted_model(call_the_tool) as model:
        environ = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url}
        plugin = ClewPlugin(tools=[find_order], store="memory://", environ=environ)
        deployment = WorkerDeploymentConfig(version=make_version(clew, "7").version, use_worker_versioning=True)
        async with Worker(client, task_queue=queue, plugins=[plugin], deployment_config=deployment):
            await set_current(clew, "7")
            session = await clew.open(f"session-{queue}", model="scripted:any", tools=["find_order"])
            assert await session.ask("Where is order 7?") == "order 7 is on its way"
            assert await read_version(clew, session.id) == "7"
            parts = ("callers", "models", "models-scripted", "tools")
            assert await list_queues(clew, "7") == {queue, *(f"{queue}-{part}" for part in parts)}


async def test_a_version_that_upgrades_workflows_is_refused(server: TemporalServer) -> None:
    """Sessions would fail on the next version: the error says how a team upgrades its own workflows."""
    queue = f"team-{uuid.uuid4().hex}"
    client = await Client.connect(server.address)
    deployment = WorkerDeploymentConfig(
        version=make_version(Clew(client, queue), "7").version,
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )
    with pytest.raises(ValueError, match="set default_versioning_behavior to PINNED"):
        Worker(client, task_queue=queue, plugins=[ClewPlugin(store="memory://")], deployment_config=deployment)


@pytest.mark.slow
async def test_a_plugin_with_keys_encrypts(server: TemporalServer) -> None:
    """With `CLEW_ENCRYPTION_KEYS` the server can read nothing of a session; the team's workflow has its values."""
    queue, secret = f"team-{uuid.uuid4().hex}", "the order of the queen"
    async with scripted_model(lambda body: Reply(f"You said: {body['messages'][-1]['content']}")) as model:
        environ = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url, "CLEW_ENCRYPTION_KEYS": write_keys("k1")}
        plugin = ClewPlugin(store="memory://", environ=environ)
        plain = await Client.connect(server.address)
        clew = await Clew.connect(server.address, task_queue=queue, encryption=make_encryption("k1"))
        async with Worker(plain, task_queue=queue, workflows=[Shipping], activities=[ship], plugins=[plugin]):
            session = await clew.open(f"session-{queue}", model="scripted:any")
            assert await session.ask(secret) == f"You said: {secret}"
            with pytest.raises(UnknownKey):
                await Clew(plain, queue).session(session.id).message("from a client without keys")
            shipping = await clew.temporal.start_workflow(
                Shipping.run, Order(secret), id=f"shipping-{queue}", task_queue=queue
            )
            assert await shipping.result() == Order(f"{secret}, shipped")
            await session.close()
    for workflow_id in (shipping.id, session.id):
        handle = clew.temporal.get_workflow_handle(workflow_id)
        assert secret.encode() not in await read_history_bytes(handle)
        replayer = Replayer(workflows=[Shipping], plugins=[ClewPlugin(environ=environ)])
        await replayer.replay_workflow(await handle.fetch_history())


def read_marks(history: WorkflowHistory) -> set[bytes]:
    """Read the team's marks of the payloads that workflows and activities have written, b"" for none."""
    attributes = [
        payload
        for event in history.events
        for payload in (
            *event.activity_task_scheduled_event_attributes.input.payloads,
            *event.activity_task_completed_event_attributes.result.payloads,
        )
    ]
    return {payload.metadata.get("team", b"") for payload in attributes}
