"""A refused update beside a timer changes the order of commands: a minimal reproduction.

    python refused_beside_timer.py [path of the `temporal` program]

While no worker runs, a timer fires and an update is sent that will be refused. The next task brings both. A condition
that the length of the history makes true is met before the timer is handed over, in a replay, which has no update,
afterwards.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.update.v1 import Input, Meta, Request
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionRequest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

QUEUE = "refused-beside-timer"
TIMER_SECONDS = 1


@workflow.defn
class Order:
    """Has a command for the timer, and one as soon as the history has more than six events."""

    @workflow.run
    async def run(self) -> None:
        """Never returns."""
        timer = asyncio.create_task(self._note_timer())
        await workflow.wait_condition(lambda: workflow.info().get_current_history_length() > 6)
        workflow.upsert_memo({"grown": True})
        await timer
        await workflow.wait_condition(lambda: False)

    async def _note_timer(self) -> None:
        await workflow.sleep(TIMER_SECONDS)
        await workflow.sleep(timedelta(days=1))

    @workflow.update
    def refused(self) -> None:
        """Never accepted."""

    @refused.validator
    def refuse(self) -> None:
        """Refuse every update."""
        raise ValueError("refused")


def make_worker(env: WorkflowEnvironment) -> Worker:
    """Make a worker."""
    return Worker(env.client, task_queue=QUEUE, workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner())


async def wait_for_events(handle: WorkflowHandle[Order, None], kind: EventType.ValueType, count: int) -> None:
    """Wait until the history has that many events of a kind."""
    while True:
        history = await handle.fetch_history()
        if sum(event.event_type == kind for event in history.events) >= count:
            return
        await asyncio.sleep(0.1)


async def main() -> int:
    """Return 0 if the history replays, else 1."""
    program = sys.argv[1] if len(sys.argv) > 1 else None
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as env:
        handle = await env.client.start_workflow(Order.run, id=f"order-{uuid.uuid4()}", task_queue=QUEUE)
        async with make_worker(env):
            await wait_for_events(handle, EventType.EVENT_TYPE_TIMER_STARTED, 1)
        await wait_for_events(handle, EventType.EVENT_TYPE_TIMER_FIRED, 1)
        update = UpdateWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            request=Request(meta=Meta(update_id="refused"), input=Input(name="refused")),
        )
        # The server keeps the update for the next task, although nobody waits for it any more.
        with suppress(RPCError):
            await env.client.workflow_service.update_workflow_execution(update, timeout=timedelta(seconds=1))
        async with make_worker(env):
            await wait_for_events(handle, EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, 2)
        history = await handle.fetch_history()
        for event in history.events:
            print(f"{event.event_id:3} {event.event_time.ToJsonString()} {EventType.Name(event.event_type)}")
    result = await Replayer(workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(
        history, raise_on_replay_failure=False
    )
    print(f"the replay: {result.replay_failure or 'as the history'}")
    return 1 if result.replay_failure else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
