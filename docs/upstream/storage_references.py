"""A caller's signal fails every workflow task of a workflow: a minimal reproduction that uses only temporalio.

    python storage_references.py [path of the `temporal` program]

The signal has a payload that is marked as a reference to external storage, which the worker does not have.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Sequence

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.common import RawValue
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

QUEUE = "storage-references"
MARKED = Payload(metadata={"encoding": b"x", "__temporal_external_storage_reference": b"true"}, data=b"{}")


@workflow.defn(sandboxed=False)
class Tolerant:
    """Takes every signal, whatever its payloads are."""

    @workflow.run
    async def run(self) -> None:
        """Never returns."""
        await workflow.wait_condition(lambda: False)

    @workflow.signal(dynamic=True)
    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """Ignore a signal."""


async def main() -> int:
    """Return 0 if the signal was handled, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with (
        await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env,
        Worker(env.client, task_queue=QUEUE, workflows=[Tolerant]),
    ):
        handle = await env.client.start_workflow(Tolerant.run, id=uuid.uuid4().hex, task_queue=QUEUE)
        await handle.signal("any", RawValue(MARKED))
        await asyncio.sleep(1)
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                print(event.workflow_task_failed_event_attributes.failure.message)
                return 1
    print("the signal was handled")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
