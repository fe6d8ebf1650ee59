"""Replay is sacred: what a session did before an upgrade it would do again after it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from tests.histories.scenarios import FOLDER, SCENARIOS
from worker import sandbox
from workflows.session import AgentSession

HISTORIES = [WorkflowHistory.from_json(file.stem, file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


async def replay(history: WorkflowHistory, session: type, runner: Any) -> None:
    replayer = Replayer(workflows=[session], data_converter=pydantic_data_converter, workflow_runner=runner)
    await replayer.replay_workflow(history)


def test_every_shape_is_recorded() -> None:
    """Each scenario has its history."""
    assert {history.workflow_id for history in HISTORIES} == set(SCENARIOS)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_a_recorded_history_replays(history: WorkflowHistory) -> None:
    """Every history of a released shape replays under today's code, in the worker's own sandbox."""
    await replay(history, AgentSession, sandbox())


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
