"""A timer of a millisecond takes up to a second: a minimal reproduction that uses only temporalio.

    python slow_timers.py [path of the `temporal` program]

Exit code 1: the timers are late.
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

QUEUE = "slow-timers"
TIMERS, LATE_SECONDS = 3, 0.2


@workflow.defn(sandboxed=False)
class Short:
    """Sleeps a millisecond, a few times."""

    @workflow.run
    async def run(self) -> float:
        """Return how long the timers took, in seconds of the workflow's clock."""
        began = workflow.time()
        for _ in range(TIMERS):
            await workflow.sleep(0.001)
        return workflow.time() - began


async def main() -> int:
    """Return 0 if the timers were in time, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with (
        await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env,
        Worker(env.client, task_queue=QUEUE, workflows=[Short]),
    ):
        seconds = await env.client.execute_workflow(Short.run, id=uuid.uuid4().hex, task_queue=QUEUE)
    print(f"{TIMERS} timers of a millisecond have taken {seconds:.2f} s")
    return 1 if seconds > TIMERS * LATE_SECONDS else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
