"""An activity's failure fails every workflow task of its workflow: a minimal reproduction that uses only temporalio.

    python failure_details.py [path of the `temporal` program]

The failure's details cannot be decoded, as an activity in another language may send them.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import suppress
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

QUEUE = "failure-details"
MALFORMED = Payload(metadata={"encoding": b"json/plain"}, data=b"{")


@activity.defn
async def fail() -> None:
    """Fail with details that are no JSON."""
    raise ApplicationError("failed", RawValue(MALFORMED), non_retryable=True)


@workflow.defn(sandboxed=False)
class Caller:
    """Runs the activity."""

    @workflow.run
    async def run(self) -> None:
        """Ignore the failure."""
        with suppress(ActivityError):
            await workflow.execute_activity(fail, start_to_close_timeout=timedelta(seconds=5))


async def main() -> int:
    """Return 0 if the workflow has got the failure, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with (
        await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env,
        Worker(env.client, task_queue=QUEUE, workflows=[Caller], activities=[fail]),
    ):
        handle = await env.client.start_workflow(Caller.run, id=uuid.uuid4().hex, task_queue=QUEUE)
        await asyncio.sleep(1)
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                print(event.workflow_task_failed_event_attributes.failure.message)
                return 1
    print("the workflow has got the failure")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
