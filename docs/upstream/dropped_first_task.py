"""A signal is in the event history and never reaches the workflow: a minimal reproduction that uses only temporalio.

    python dropped_first_task.py [path of the `temporal` program]

The server delays the first workflow task of a workflow run: here because of `start_delay`; also after a workflow run
continues as new within its first second. An update starts the task earlier, the validator rejects the update, and the
server drops the task. The worker that has the workflow in its cache then skips later signals.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from datetime import timedelta

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

SIGNALS = [0, 1, 2]
QUEUE = "dropped-first-task"


@workflow.defn
class Notes:
    """Stores numbers that signals bring."""

    def __init__(self) -> None:
        self._notes: list[int] = []

    @workflow.run
    async def run(self) -> None:
        """Never returns."""
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def note(self, number: int) -> None:
        """Store a number."""
        self._notes.append(number)

    @workflow.update
    def refused(self) -> None:
        """Never accepted."""

    @refused.validator
    def refuse(self) -> None:
        """Refuse every update."""
        raise ValueError("refused")

    @workflow.query
    def notes(self) -> list[int]:
        """Return all numbers."""
        return self._notes


async def main() -> int:
    """Return 0 if the cached workflow and its replay have every signal, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        async with Worker(env.client, task_queue=QUEUE, workflows=[Notes]):
            handle = await env.client.start_workflow(
                Notes.run, id=f"notes-{uuid.uuid4()}", task_queue=QUEUE, start_delay=timedelta(seconds=1)
            )
            try:
                await handle.execute_update(Notes.refused)
            except WorkflowUpdateFailedError:
                print("the update was refused, as it should be")
            for number in SIGNALS:
                await handle.signal(Notes.note, number)
            await asyncio.sleep(2)
            cached = await handle.query(Notes.notes)
        async with Worker(env.client, task_queue=QUEUE, workflows=[Notes]):
            replayed = await handle.query(Notes.notes)
        async for event in handle.fetch_history_events():
            print(f"{event.event_id:3} {EventType.Name(event.event_type)}")
    print(f"sent {SIGNALS}, the cached workflow has {cached}, another worker that replays the history has {replayed}")
    return 0 if cached == replayed == SIGNALS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
