"""Workers with a version: deployments of a task queue's workers, as an operator makes them."""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from temporalio.api.deployment.v1 import RoutingConfig
from temporalio.api.enums.v1 import (
    EventType,
    RoutingConfigUpdateState,
    VersionDrainageStatus,
    WorkflowTaskFailedCause,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentVersionRequest,
    DescribeWorkerDeploymentVersionResponse,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
)
from temporalio.client import WorkflowHistory
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, WorkerDeploymentConfig

from clew import Agent, Clew, Session
from clew.local.temporal import temporal_command
from clew.tools import ToolDefinition
from clew_activities.tools.registry import load_tools
from clew_activities.worker import make_workflow_sandbox
from clew_activities.worker.environment import WORKFLOWS
from clew_workflows.host.payload_converter import make_tolerant
from clew_workflows.protocol import RolloverThresholds
from tests.support import toolbox
from tests.support.other_workflows import NEXT
from tests.support.rolling import list_runs
from tests.support.stack import Stack, run_deployment
from tests.support.waiting import wait_until

QUICK_DRAINS = {
    "matching.wv.VersionDrainageStatusVisibilityGracePeriod": "1s",
    "matching.wv.VersionDrainageStatusRefreshInterval": "1s",
}
"""A server's dynamic configuration: it notices within seconds, not minutes, that no session is left on a version."""

SAID_SECONDS = 10.0
"""Seconds for the server to say that all task queues know a change. It may never say so, though they do: see
https://github.com/temporalio/temporal/issues/11842. Then the task queues are asked."""


def make_version(clew: Clew, build_id: str) -> WorkerDeploymentConfig:
    """Make the version of a worker; its deployment has the name of the client's task queue."""
    version = WorkerDeploymentVersion(deployment_name=clew.task_queue, build_id=build_id)
    return WorkerDeploymentConfig(
        version=version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )


async def set_current(clew: Clew, build_id: str) -> None:
    """Make a version current for new sessions, as soon as its workers poll; return when all task queues know it."""
    service, namespace = clew.temporal.workflow_service, clew.temporal.namespace
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=namespace, deployment_name=clew.task_queue, build_id=build_id, identity="operator"
    )
    await _set_routes(
        clew,
        lambda: service.set_worker_deployment_current_version(request),
        lambda routes: routes.current_deployment_version.build_id == build_id,
    )


async def set_ramping(clew: Clew, build_id: str, percentage: float) -> None:
    """Give a share of the sessions to a version. Without a build id, end the ramp."""
    service, namespace = clew.temporal.workflow_service, clew.temporal.namespace
    request = SetWorkerDeploymentRampingVersionRequest(
        namespace=namespace,
        deployment_name=clew.task_queue,
        build_id=build_id,
        percentage=percentage,
        identity="operator",
    )
    await _set_routes(
        clew,
        lambda: service.set_worker_deployment_ramping_version(request),
        lambda routes: (
            (routes.ramping_deployment_version.build_id, routes.ramping_version_percentage) == (build_id, percentage)
        ),
    )


async def _set_routes(
    clew: Clew, change: Callable[[], Awaitable[object]], is_changed: Callable[[RoutingConfig], bool]
) -> None:
    """Change which versions get sessions, as soon as the server accepts it; return when all task queues know it."""

    async def is_accepted() -> bool:
        try:
            await change()
        except RPCError as error:
            # The server does not know the version yet, or not all of its task queues.
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                raise
            return False
        return True

    async def is_known() -> bool:
        described = await clew.temporal.workflow_service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=clew.temporal.namespace, deployment_name=clew.task_queue),
            retry=True,
        )
        info = described.worker_deployment_info
        pending = RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_IN_PROGRESS
        if not is_changed(info.routing_config):
            return False
        return info.routing_config_update_state != pending or (
            time.monotonic() > asked_at + SAID_SECONDS and await _do_queues_know(clew, info.routing_config)
        )

    await wait_until(is_accepted)
    asked_at = time.monotonic()
    await wait_until(is_known)


async def _do_queues_know(clew: Clew, routes: RoutingConfig) -> bool:
    """Whether each task queue of the version that is current, or on the ramp, says that it is."""
    service, namespace = clew.temporal.workflow_service, clew.temporal.namespace
    wanted = (
        routes.current_deployment_version.build_id,
        routes.ramping_deployment_version.build_id,
        routes.ramping_version_percentage,
    )
    for build_id in filter(None, wanted[:2]):
        for queue in (await describe_version(clew, build_id)).version_task_queues:
            request = DescribeTaskQueueRequest(
                namespace=namespace, task_queue=TaskQueue(name=queue.name), task_queue_type=queue.type
            )
            known = (await service.describe_task_queue(request, retry=True)).versioning_info
            if wanted != (
                known.current_deployment_version.build_id,
                known.ramping_deployment_version.build_id,
                known.ramping_version_percentage,
            ):
                return False
    return True


async def describe_version(clew: Clew, build_id: str) -> DescribeWorkerDeploymentVersionResponse:
    """Describe a version: its task queues, and whether it is drained."""
    version = make_version(clew, build_id).version
    return await clew.temporal.workflow_service.describe_worker_deployment_version(
        DescribeWorkerDeploymentVersionRequest(
            namespace=clew.temporal.namespace, deployment_version=version._to_proto()
        ),
        retry=True,
    )


async def list_queues(clew: Clew, build_id: str) -> set[str]:
    """List the task queues that the workers of a version poll."""
    return {queue.name for queue in (await describe_version(clew, build_id)).version_task_queues}


async def read_version(clew: Clew, session_id: str) -> str:
    """Read the build id of the version on which a session is."""
    described = await clew.temporal.get_workflow_handle(session_id).describe()
    return described.raw_description.workflow_execution_info.versioning_info.deployment_version.build_id


async def fetch_runs(clew: Clew, session_id: str) -> list[WorkflowHistory]:
    """Fetch the histories of all workflow runs of a session, the newest first."""
    return [
        await clew.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        for run_id in await list_runs(clew, session_id)
    ]


def list_failed_tasks(history: WorkflowHistory) -> list[str]:
    """List the messages of the workflow tasks that have failed; a task that new events have overtaken has not."""
    failed = [
        event.workflow_task_failed_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    overtaken = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    return [attributes.failure.message for attributes in failed if attributes.cause != overtaken]


def read_build_ids(history: WorkflowHistory) -> set[str]:
    """Read the build ids of the workers that have completed the workflow tasks of a run."""
    return {
        event.workflow_task_completed_event_attributes.deployment_version.build_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    }


async def is_drained(clew: Clew, build_id: str) -> bool:
    """Whether the server has noticed that no open workflow is pinned to a version."""
    info = (await describe_version(clew, build_id)).worker_deployment_version_info
    return info.drainage_info.status == VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINED


async def run_temporal(clew: Clew, *arguments: str) -> str:
    """Run the program `temporal` as an operator does, and return its output."""
    address = clew.temporal.service_client.config.target_host
    program = await asyncio.create_subprocess_exec(
        temporal_command(), *arguments, "--address", address, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await program.communicate()
    assert program.returncode == 0, output.decode()
    return output.decode()


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
    thresholds: RolloverThresholds = field(default_factory=RolloverThresholds)

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

    async def wait_for(self, session_id: str, build_id: str) -> None:
        """Wait until a session is on a version."""

        async def is_there() -> bool:
            return await read_version(self.clew, session_id) == build_id

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
