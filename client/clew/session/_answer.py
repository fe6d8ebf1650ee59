"""Read the answer of a request from the end of its session's history. No worker takes part in that, as in a query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.converter import WorkflowSerializationContext

from clew.outcomes import RequestOutcome
from clew.session.events.server import MODEL_CALL
from clew.session.handle import SessionHandle

NEWEST_BATCHES = 6
"""What is read: events that the server has written together are a batch. The batch that schedules the last model call
of a turn is usually the fourth from its end."""
CALL_TIMEOUT = timedelta(seconds=5)
"""Time within which the server must return them."""


async def read_newest_answer(handle: SessionHandle, workflow_run_id: str, outcome: RequestOutcome) -> str | None:
    """Read the text of a completed request's answer.

    Args:
        handle: The session.
        workflow_run_id: The workflow run that has reported the outcome.
        outcome: The outcome.

    Returns:
        The text. None: the session must be asked. The call is not among the newest events, another one has ended
        since, the answer was not the last that the run committed, or the worker writes its results in another form.
    """
    if outcome.answer_seq is None or outcome.last_seq != outcome.answer_seq + 1:
        return None
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=handle.client.namespace,
        execution=WorkflowExecution(workflow_id=handle.session_id, run_id=workflow_run_id),
        maximum_page_size=NEWEST_BATCHES,
    )
    try:
        service = handle.client.workflow_service
        page = await service.get_workflow_execution_history_reverse(request, timeout=CALL_TIMEOUT)
        argument, result = _find_newest_call(page.history.events)
        context = WorkflowSerializationContext(handle.client.namespace, handle.session_id)
        converter = handle.client.data_converter.with_context(context)
        call, answered = await converter.decode([argument, result], [dict, dict])
        text = answered["reply"]["content"]
        return text if call["run_id"] == outcome.run_id and isinstance(text, str) else None
    except Exception:  # a payload codec of the caller's may raise anything
        return None


def _find_newest_call(newest_first: Sequence[HistoryEvent]) -> tuple[Payload, Payload]:
    """Find what the newest model call with a result was given, and the result.

    Raises:
        LookupError: There is none among the events.
    """
    results: dict[int, Payload] = {}
    for event in newest_first:
        completed = event.activity_task_completed_event_attributes
        if completed.scheduled_event_id:
            results[completed.scheduled_event_id] = completed.result.payloads[0]
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == MODEL_CALL and event.event_id in results:
            return scheduled.input.payloads[0], results[event.event_id]
    raise LookupError(MODEL_CALL)
