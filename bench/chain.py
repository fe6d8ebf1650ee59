"""The workflow runs of a session, as the server reports them: their histories' sizes and failed tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import Client

# A signal or update arrived while the workflow completed; the server retries the task and nothing is lost.
_HARMLESS = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND


@dataclass(frozen=True)
class WorkflowRun:
    """One workflow run.

    Attributes:
        run_id: Its id.
        events: Events in its history.
        size: Bytes of its history.
        start_size: Bytes of its input.
        updates: The updates that it has accepted.
        failures: Causes and messages of the workflow tasks that failed.
    """

    run_id: str
    events: int
    size: int
    start_size: int
    updates: int
    failures: tuple[str, ...]


async def list_runs(client: Client, session_id: str) -> list[WorkflowRun]:
    """List all workflow runs of a session, oldest first."""
    runs: list[WorkflowRun] = []
    run_id = (await client.get_workflow_handle(session_id).describe()).run_id
    while run_id:
        handle = client.get_workflow_handle(session_id, run_id=run_id)
        info = (await handle.describe()).raw_description.workflow_execution_info
        start: Any = None
        updates, failures = 0, []
        async for event in handle.fetch_history_events():
            if start is None:
                start = event.workflow_execution_started_event_attributes
            elif event.HasField("workflow_execution_update_accepted_event_attributes"):
                updates += 1
            elif event.HasField("workflow_task_failed_event_attributes"):
                failed = event.workflow_task_failed_event_attributes
                if failed.cause != _HARMLESS:
                    cause = WorkflowTaskFailedCause.Name(failed.cause)
                    failures.append(f"{cause}: {failed.failure.message[:300]}")
        size = sum(payload.ByteSize() for payload in start.input.payloads)
        runs.append(WorkflowRun(run_id, info.history_length, info.history_size_bytes, size, updates, tuple(failures)))
        run_id = start.continued_execution_run_id
    return runs[::-1]
