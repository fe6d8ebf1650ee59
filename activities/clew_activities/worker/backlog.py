"""The depth of the worker's task queues, as a metric."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.service import RPCError

from clew_activities.worker.assembly import Work
from clew_workflows.contract.names import name_model_queue, name_provider_queue, name_tool_queue

INTERVAL_SECONDS = 10.0
"""Seconds between two requests to the server for the depth of the queues."""
TIMEOUT = timedelta(seconds=5)

WORKFLOW = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITY = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
Queue = tuple[str, "TaskQueueType.ValueType"]


def list_queues(task_queue: str, serves: Collection[Work], limited: Collection[str] = ()) -> list[Queue]:
    """List the queues of sessions, of model calls, also those of `limited` providers, and of tool calls."""
    providers = [(name_provider_queue(task_queue, provider), ACTIVITY) for provider in sorted(limited)]
    queues: dict[Work, list[Queue]] = {
        "sessions": [(task_queue, WORKFLOW), (task_queue, ACTIVITY)],
        "models": [(name_model_queue(task_queue), ACTIVITY), *providers],
        "tools": [(name_tool_queue(task_queue), ACTIVITY)],
    }
    return [queue for work in serves for queue in queues[work]]


@asynccontextmanager
async def report_backlog(client: Client, meter: MetricMeter, queues: Sequence[Queue]) -> AsyncIterator[None]:
    """Report how many tasks of each queue wait for a worker, while the context is open.

    Every worker of a queue reports the number of the whole queue.
    """
    task = asyncio.create_task(_report(client, meter, queues))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _report(client: Client, meter: MetricMeter, queues: Sequence[Queue]) -> None:
    gauge = meter.create_gauge("clew_task_queue_backlog", "Tasks of a task queue that wait for a worker.")
    while queues:
        for name, kind in queues:
            backlog = await _fetch_backlog(client, name, kind)
            if backlog is not None:
                gauge.set(backlog, {"queue": name, "kind": "workflow" if kind == WORKFLOW else "activity"})
        await asyncio.sleep(INTERVAL_SECONDS)


async def _fetch_backlog(client: Client, name: str, kind: TaskQueueType.ValueType) -> int | None:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=name), task_queue_type=kind, report_stats=True
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request, timeout=TIMEOUT)
    except RPCError:
        # The connection is what `/ready` reports.
        return None
    return answer.stats.approximate_backlog_count if answer.HasField("stats") else None
