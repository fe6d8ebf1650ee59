"""The runs of a session's workflow, as the server has them: how long their histories are, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import Client

# Something came in while the workflow said that it was done: it is asked anew, and nothing is lost.
_HARMLESS = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND


@dataclass(frozen=True)
class WorkflowRun:
    """One run: events and bytes of its history, the bytes it started with, and the workflow tasks that failed."""

    run_id: str
    events: int
    size: int
    start_size: int
    failures: tuple[str, ...]


async def runs_of(client: Client, session_id: str) -> list[WorkflowRun]:
    """All runs of a session's workflow, the first one first."""
    runs: list[WorkflowRun] = []
    run_id = (await client.get_workflow_handle(session_id).describe()).run_id
    while run_id:
        handle = client.get_workflow_handle(session_id, run_id=run_id)
        info = (await handle.describe()).raw_description.workflow_execution_info
        start: Any = None
        failures = []
        async for event in handle.fetch_history_events():
            if start is None:
                start = event.workflow_execution_started_event_attributes
            elif event.HasField("workflow_task_failed_event_attributes"):
                failed = event.workflow_task_failed_event_attributes
                if failed.cause != _HARMLESS:
                    cause = WorkflowTaskFailedCause.Name(failed.cause)
                    failures.append(f"{cause}: {failed.failure.message[:300]}")
        size = sum(payload.ByteSize() for payload in start.input.payloads)
        runs.append(WorkflowRun(run_id, info.history_length, info.history_size_bytes, size, tuple(failures)))
        run_id = start.continued_execution_run_id
    return runs[::-1]
