"""One update too many drops those that wait: a minimal reproduction that uses only temporalio.

    python updates_in_flight.py [path of the `temporal` program]

No worker runs, so that no update is accepted. The server takes ten. Each further one is refused, which is right, and
the ten are aborted with it, which is not. The server's frontend repeats aborted updates a few times, then they fail.
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.update.v1 import Input, Meta, Request
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

ROOM, MORE = 10, 40
PAUSE_SECONDS = 0.02
WAIT_SECONDS = 2.0


async def update(client: Client, workflow_id: str) -> str:
    """Send an update; returns how the call has failed."""
    request = UpdateWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        request=Request(meta=Meta(update_id=uuid.uuid4().hex), input=Input(name="any")),
    )
    try:
        await client.workflow_service.update_workflow_execution(request)
    except RPCError as error:
        return f"{error.status.name}: {error.message}"
    return "accepted"


async def main() -> int:
    """Return 0 if the first ten updates still wait, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        handle = await env.client.start_workflow("Unserved", id=uuid.uuid4().hex, task_queue="unserved")
        waiting = [asyncio.create_task(update(env.client, handle.id)) for _ in range(ROOM)]
        await asyncio.sleep(WAIT_SECONDS)
        more = []
        for _ in range(MORE):
            more.append(asyncio.create_task(update(env.client, handle.id)))
            await asyncio.sleep(PAUSE_SECONDS)
        dropped, _ = await asyncio.wait(waiting, timeout=WAIT_SECONDS)
        print(f"{len(dropped)} of {ROOM} updates that waited were dropped: { {task.result() for task in dropped} }")
        for task in [*waiting, *more]:
            task.cancel()
    return 1 if dropped else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
