"""A replay handles a signal at another time than the first execution: a minimal reproduction.

    python joined_tasks.py [path of the `temporal` program]

A task handles signal 1 and has no command. The next task only rejects an update, but the server writes it to the
history, because signal 2 arrives while the validator runs. A replay joins both tasks into one.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "joined-tasks"
VALIDATOR_SECONDS = 0.5


@workflow.defn
class Notes:
    """Stores numbers that signals bring, with the time."""

    def __init__(self) -> None:
        self._notes: list[tuple[int, str]] = []

    @workflow.run
    async def run(self) -> None:
        """Never returns."""
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def note(self, number: int) -> None:
        """Store a number."""
        self._notes.append((number, workflow.now().isoformat()))

    @workflow.update
    def refused(self) -> None:
        """Never accepted."""

    @refused.validator
    def refuse(self) -> None:
        """Refuse every update after a delay, as on a busy machine."""
        time.sleep(VALIDATOR_SECONDS)
        raise ValueError("refused")

    @workflow.query
    def notes(self) -> list[tuple[int, str]]:
        """Return all numbers."""
        return self._notes


def make_worker(env: WorkflowEnvironment) -> Worker:
    """Make a worker without the sandbox, so that validators can sleep."""
    runner = UnsandboxedWorkflowRunner()
    return Worker(env.client, task_queue=QUEUE, workflows=[Notes], workflow_runner=runner)


async def main() -> int:
    """Return 0 if the cached workflow and its replay agree, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        async with make_worker(env):
            handle = await env.client.start_workflow(Notes.run, id=f"notes-{uuid.uuid4()}", task_queue=QUEUE)
            await handle.query(Notes.notes)
            await handle.signal(Notes.note, 1)
            await handle.query(Notes.notes)
            refusal = asyncio.create_task(handle.execute_update(Notes.refused))
            await asyncio.sleep(VALIDATOR_SECONDS / 2)
            await handle.signal(Notes.note, 2)
            try:
                await refusal
            except WorkflowUpdateFailedError:
                print("the update was refused, as it should be")
            cached = await handle.query(Notes.notes)
        async with make_worker(env):
            replayed = await handle.query(Notes.notes)
        async for event in handle.fetch_history_events():
            print(f"{event.event_id:3} {event.event_time.ToJsonString()} {EventType.Name(event.event_type)}")
    print(f"the cached workflow has {cached}\nanother worker, by a replay, has {replayed}")
    return 0 if cached == replayed else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
