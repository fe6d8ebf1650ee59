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
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from clew import Clew
from clew.model.canonical import compute_digest
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools import load_tools
from clew_activities.worker import SessionWorker, make_worker, make_workflow_sandbox
from clew_audit.replay import replay_run
from clew_workflows.session import AgentSession
from tests.support.histories import HISTORIES
from tests.support.scenarios import SCENARIOS, control, reply_as_scenario
from tests.support.stack import Stack

THREADS = {
    "compacting-1.1": "127e5af133c76a73",
    "compacting-1.2": "6f3e590724376a40",
    "compacting-1.3": "157875398181aab5",
    "compacting-1.4": "5b40a77848f1c213",
    "compacting-1.5": "09918fdfafe2be23",
    "control-1.1": "ec43dc146051ebfd",
    "control-1.2": "b4982c4447479c54",
    "conversation-1": "3e694bb313d777fa",
    "defaults-1": "96d12e580adff5c6",
    "doubts-1.1": "8160516c2eaaf41b",
    "doubts-1.2": "b3cf0c2c4e9ab8af",
    "failures-1": "ca9fe8237b37e259",
    "limits-1.1": "864c44f6a2b3afa1",
    "limits-1.2": "d2f90d6018947143",
    "limits-1.3": "16f036331916ca07",
    "limits-1.4": "81d427d5ba10ad95",
    "rollover-1.1": "5e366f3683c6f4e5",
    "rollover-1.2": "c36e4126a1fb050d",
    "rollover-1.3": "a3602d1c894cf49b",
    "rollover-1.4": "28ac2e2da072668e",
    "rollover-1.5": "dd01f2796441dd35",
    "rollover-1.6": "2d2b9a19264a53cf",
    "rollover-1.7": "824ae3a1e263bb62",
    "rollover-1.8": "4722b5e5df3e5545",
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
    await replay(history, AgentSession, make_workflow_sandbox())


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_a_recorded_history_makes_the_thread_that_it_made(history: WorkflowHistory) -> None:
    """Every entry, with its counts, recipes and policies, is the one that was committed when it was recorded."""
    session = (await replay_run(history)).session
    assert session
    assert compute_digest([entry.as_json() for entry in session.thread])[:16] == THREADS[history.workflow_id]


async def test_a_thread_is_equal_after_replay(stack: Stack) -> None:
    """A worker that knows nothing but the history has the thread that the first worker had, to the byte."""
    queue = f"queue-{uuid.uuid4().hex}"
    clew = Clew(stack.clew.temporal, queue)
    providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})

    store = Store.from_url("memory://")

    def worker(http: httpx.AsyncClient) -> SessionWorker:
        tools = load_tools(["tests.support.toolbox"])
        return make_worker(clew.temporal, task_queue=queue, providers=providers, tools=tools, http=http, store=store)

    async with make_http_client() as http:
        async with worker(http):
            model = stack.add_model(reply_as_scenario)
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
