"""Queries that come together during a workflow task wait a second: a minimal reproduction that uses only temporalio.

    python query_buffer.py [path of the `temporal` program]

Exit code 1: a query was answered long after the workflow could answer it.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

from temporalio import workflow
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskFailedRequest
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

QUEUE = "query-buffer"
QUERIES = 3
LATE_SECONDS = 0.3


@workflow.defn(sandboxed=False)
class Idle:
    """Answers queries."""

    @workflow.run
    async def run(self) -> None:
        """Never returns."""
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def answer(self) -> int:
        """Return a number."""
        return 42


async def ask(handle: WorkflowHandle[Idle, None]) -> float:
    """Query the workflow; returns when it was answered."""
    await handle.query(Idle.answer)
    return time.monotonic()


async def main() -> int:
    """Return 0 if all queries were answered as soon as the workflow could, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        service = env.client.workflow_service
        handle = await env.client.start_workflow(Idle.run, id=uuid.uuid4().hex, task_queue=QUEUE)
        async with Worker(env.client, task_queue=QUEUE, workflows=[Idle]):
            await ask(handle)
        # A task that has started, on a worker that takes its time.
        await handle.signal("next")
        task = await service.poll_workflow_task_queue(
            PollWorkflowTaskQueueRequest(namespace="default", task_queue=TaskQueue(name=QUEUE), identity="slow")
        )
        # The worker that answers waits already: nothing but the queries is late.
        async with Worker(env.client, task_queue=QUEUE, workflows=[Idle]):
            asked = [asyncio.create_task(ask(handle)) for _ in range(QUERIES)]
            await asyncio.sleep(0.2)
            await service.respond_workflow_task_failed(
                RespondWorkflowTaskFailedRequest(namespace="default", task_token=task.task_token, identity="slow")
            )
            answered = sorted(await asyncio.gather(*asked))
    late = [round(moment - answered[0], 2) for moment in answered]
    print(f"seconds after the first answer: {late}")
    return 1 if late[-1] > LATE_SECONDS else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
