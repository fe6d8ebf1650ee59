"""Replay is sacred: what a session did before an upgrade it would do again after it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import NondeterminismError

from activities.archive import Store
from activities.providers import http_client, providers_from_env
from activities.tools import load_tools
from audit.rebuild import rebuild
from clew import Clew
from clew.canonical import digest
from tests.conftest import World
from tests.histories.scenarios import FOLDER, SCENARIOS, control, script
from worker import make_worker, sandbox
from workflows.session import AgentSession

HISTORIES = [WorkflowHistory.from_json(file.stem, file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
THREADS = {
    "compacting-1.1": "774a0cd57c3e2969",
    "compacting-1.2": "ef4547787559f7c7",
    "compacting-1.3": "344c533ba537f4d3",
    "compacting-1.4": "1ae468207b0b5799",
    "control-1": "3663d4377a39f140",
    "conversation-1": "d83120ca8514858d",
    "defaults-1": "c778e22ed8647c79",
    "failures-1": "e1d4fbe13fef5538",
    "limits-1.1": "d2ddd413f9b5da54",
    "limits-1.2": "c1be60a18e1fe4b2",
    "limits-1.3": "a5cab2c56dc152f6",
    "limits-1.4": "36265fb987bb36e1",
    "rollover-1.1": "981d365ca5b254f6",
    "rollover-1.6": "9a37e78602707479",
    "rollover-1.7": "6996df8c118f8b9e",
    "rollover-1.8": "7dc9975df6e3231e",
}
"""What each history made when it was recorded. A digest is never written again, as the file is not."""


async def replay(history: WorkflowHistory, session: type, runner: Any) -> None:
    replayer = Replayer(workflows=[session], data_converter=pydantic_data_converter, workflow_runner=runner)
    await replayer.replay_workflow(history)


def test_every_shape_is_recorded() -> None:
    """Each scenario has its history."""
    assert {history.workflow_id.partition(".")[0] for history in HISTORIES} == set(SCENARIOS)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_a_recorded_history_replays(history: WorkflowHistory) -> None:
    """Every history of a released shape replays under today's code, in the worker's own sandbox."""
    await replay(history, AgentSession, sandbox())


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_a_recorded_history_makes_the_thread_that_it_made(history: WorkflowHistory) -> None:
    """Every entry, with its counts, recipes and policies, is the one that was committed when it was recorded."""
    session = (await rebuild(history)).session
    assert session
    assert digest([entry.as_json() for entry in session.thread])[:16] == THREADS[history.workflow_id]


async def test_a_thread_is_equal_after_replay(world: World) -> None:
    """A worker that knows nothing but the history has the thread that the first worker had, to the byte."""
    queue = f"queue-{uuid.uuid4().hex}"
    clew = Clew(world.clew.temporal, queue)
    providers = providers_from_env({"CLEW_PROVIDER_SCRIPTED_BASE_URL": world.provider.base_url})

    store = Store.from_url("memory://")

    def worker(http: httpx.AsyncClient) -> Worker:
        tools = load_tools(["tests.toolbox"])
        return make_worker(clew.temporal, task_queue=queue, providers=providers, tools=tools, http=http, store=store)

    async with http_client() as http:
        async with worker(http):
            model = world.model(script)
            session = await clew.open(f"test-{uuid.uuid4().hex}", model=model, tools=["add"])
            await control(session)
            before = [entry.as_json() for entry in await session.entries()]
        async with worker(http):
            assert [entry.as_json() for entry in await session.entries()] == before
            assert len(before) > 30


@workflow.defn(dynamic=True)
class Reordered(AgentSession):
    """A session that does something of its own before all else."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)

    async def _serve(self) -> None:
        await workflow.sleep(timedelta(seconds=1))
        await super()._serve()


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_a_change_of_command_order_is_caught(history: WorkflowHistory) -> None:
    """The same histories do not replay under code that asks for another thing first."""
    with pytest.raises(NondeterminismError):
        await replay(history, Reordered, UnsandboxedWorkflowRunner())
