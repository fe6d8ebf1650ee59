"""Workers with a version: deployments of a task queue's workers, as an operator makes them."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Awaitable, Callable

from temporalio.api.deployment.v1 import RoutingConfig
from temporalio.api.enums.v1 import (
    EventType,
    RoutingConfigUpdateState,
    VersionDrainageStatus,
    WorkflowTaskFailedCause,
)
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentVersionRequest,
    DescribeWorkerDeploymentVersionResponse,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
)
from temporalio.client import WorkflowHistory
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from clew import Clew
from clew.local.temporal import temporal_command
from tests.support.rolling import list_runs
from tests.support.waiting import wait_until

QUICK_DRAINS = {
    "matching.wv.VersionDrainageStatusVisibilityGracePeriod": "1s",
    "matching.wv.VersionDrainageStatusRefreshInterval": "1s",
}
"""A server's dynamic configuration: it notices within seconds, not minutes, that no session is left on a version."""


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
        return is_changed(info.routing_config) and info.routing_config_update_state != pending

    await wait_until(is_accepted)
    await wait_until(is_known)


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
