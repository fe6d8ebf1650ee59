"""A workflow task may take longer than the SDK's two seconds."""

from __future__ import annotations

import time
import uuid
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.worker import Worker

from clew_workflows.temporal_faults.deadlock_timeout import ACTIVATION_SECONDS, wait_for_activations
from tests.support.stack import Stack

SDK_SECONDS = 2
"""Seconds after which the SDK fails a workflow task as deadlocked."""
BLOCKED_SECONDS = 2.5
"""Seconds of a workflow task, more than the SDK allows."""


@workflow.defn(sandboxed=False)
class Slow:
    """Blocks its thread, as the decisions of a burst of inputs do."""

    @workflow.run
    async def run(self) -> None:
        """Run one long workflow task."""
        time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251 - the thread is to be blocked


async def test_a_long_task_completes(stack: Stack) -> None:
    """It is not failed as deadlocked, so that it does not begin again from its start."""
    assert BLOCKED_SECONDS < ACTIVATION_SECONDS
    client, queue = stack.clew.temporal, uuid.uuid4().hex
    worker = Worker(client, task_queue=queue, workflows=[Slow])
    workflows: Any = worker._workflow_worker
    # The tests' configuration has set another value for busy machines.
    workflows._deadlock_timeout_seconds = SDK_SECONDS
    wait_for_activations(worker)
    async with worker:
        handle = await client.start_workflow(Slow.run, id=uuid.uuid4().hex, task_queue=queue)
        await handle.result()
    history = await handle.fetch_history()
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in {event.event_type for event in history.events}
