"""A cancelled call raises no `CancelledError`: a minimal reproduction that uses only temporalio.

python cancelled_calls.py [path of the `temporal` program]
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from temporalio.client import WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment


async def main() -> int:
    """Return 0 if the cancelled call has raised `CancelledError`, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        handle = await env.client.start_workflow("Unserved", id=uuid.uuid4().hex, task_queue="unserved")
        accepted = WorkflowUpdateStage.ACCEPTED
        sending = asyncio.ensure_future(handle.start_update("any", wait_for_stage=accepted))
        await asyncio.sleep(0.3)
        sending.cancel()
        (raised,) = await asyncio.gather(sending, return_exceptions=True)
    print(f"the cancelled call has raised {raised!r}")
    return 0 if isinstance(raised, asyncio.CancelledError) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
