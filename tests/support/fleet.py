"""Workers of several versions on one task queue, and replays with the code of each version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from clew import Agent, Clew, Session
from clew.tools import ToolDefinition
from clew_activities.tools.registry import load_tools
from clew_activities.worker import make_workflow_sandbox
from clew_activities.worker.assembly import DEFAULT_THRESHOLDS, WORKFLOWS
from clew_workflows.host.payload_converter import make_tolerant
from clew_workflows.protocol import RolloverThresholds
from tests.support import toolbox
from tests.support.deployments import run_deployment
from tests.support.next_version import NEXT
from tests.support.stack import Stack
from tests.support.versions import make_version, read_version, set_current
from tests.support.waiting import wait_until

VERSIONS = {"": WORKFLOWS, "1": WORKFLOWS, "1.1": WORKFLOWS, "2": NEXT}
"""The workflows of the versions, by build id. The last one is not compatible with event histories of the others."""


@dataclass
class Fleet:
    """The workers of a task queue, some of each version.

    Attributes:
        stack: The models and the store.
        clew: The client.
        agents: The agents of all workers.
        thresholds: When the sessions roll over.
    """

    stack: Stack
    clew: Clew
    agents: tuple[Agent, ...] = ()
    thresholds: RolloverThresholds = DEFAULT_THRESHOLDS

    @asynccontextmanager
    async def run(self, build_id: str, *tools: ToolDefinition, current: bool = True) -> AsyncIterator[None]:
        """Run the workers of a version, or of none (""), and make the version current unless `current` is False."""
        async with run_deployment(
            self.stack,
            self.clew,
            *self.agents,
            tools=(*load_tools([toolbox.__name__]).values(), *tools),
            thresholds=self.thresholds,
            deployment=make_version(self.clew, build_id) if build_id else None,
            workflows=VERSIONS[build_id],
        ):
            if current and build_id:
                await set_current(self.clew, build_id)
            yield

    async def wait_for(self, session: Session, build_id: str) -> None:
        """Wait until a session is on a version."""

        async def is_there() -> bool:
            return await read_version(self.clew, session.id) == build_id

        await wait_until(is_there)


async def replay(history: WorkflowHistory, build_id: str, clew: Clew) -> Exception | None:
    """Replay a workflow run with the code of a version, and return its failure."""
    replayer = Replayer(
        workflows=VERSIONS[build_id],
        data_converter=make_tolerant(clew.temporal.data_converter),
        workflow_runner=make_workflow_sandbox(),
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


async def read_texts(session: Session) -> list[str]:
    """Read the texts of a session's messages."""
    return [entry.payload["content"] for entry in await session.entries() if entry.kind == "ai_message"]
