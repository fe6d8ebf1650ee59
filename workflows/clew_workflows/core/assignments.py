"""The work of a session that is a subagent: it serves one task, reports the result, and closes."""

from __future__ import annotations

from dataclasses import replace

from clew.contract import MessageInput, SubagentResultInput, Task
from clew.contract.payloads import AssistantMessage
from clew.model.texts import truncate_result
from clew.outcomes import RequestOutcome
from clew.thread.thread import Thread
from clew_workflows.core import outcomes, requests
from clew_workflows.core.calls import Assignment
from clew_workflows.core.decision import Decision
from clew_workflows.core.run import Run
from clew_workflows.core.state import Moment, State


def assign(state: State, task: Task) -> State:
    """Put the request of a task into the queue of a new session."""
    state = replace(state, assignment=Assignment(task.model_copy(update={"content": ""})))
    request = requests.make_request(state, MessageInput(content=task.content), task.request_id)
    return replace(state, queue=(request,))


def note_work(state: State, run: Run, at: Moment) -> State:
    """Note how long the request of the task has taken, as its run ends."""
    assignment = state.assignment
    if assignment is None or run.request.request_id != assignment.task.request_id:
        return state
    now = at.time if run.paused_at is None else run.paused_at
    worked = max(now - (run.deadline - run.request.timeout_seconds), 0.0)
    return replace(state, assignment=replace(assignment, worked_seconds=worked))


def find_result(state: State, thread: Thread) -> SubagentResultInput | None:
    """Find the result that is to be reported; None: the task is not over, or has been reported."""
    assignment = state.assignment
    if assignment is None or assignment.step != "open":
        return None
    task = assignment.task
    outcome = outcomes.find_outcome(state, thread, task.request_id)
    if outcome is None or outcome.status == "running":
        return None
    text = _find_text(thread, outcome)
    data = text.encode()
    if len(data) > task.max_result_bytes:
        text, _ = truncate_result(data, task.max_result_bytes, f"; session {state.session_id} has all of it")
    return SubagentResultInput(
        tool_call_id=task.tool_call_id,
        session_id=state.session_id,
        status=outcome.status,
        reason=(outcome.termination_reason or "")[:200],
        content=text,
        usage=state.usage.plus(state.subagent_usage),
        worked_seconds=assignment.worked_seconds,
    )


def _find_text(thread: Thread, outcome: RequestOutcome) -> str:
    if outcome.status == "failed":
        return outcome.error.message if outcome.error else ""
    if outcome.status == "cancelled":
        return outcome.reason or ""
    seq = outcome.answer_seq
    if seq is None:
        return ""
    if seq < thread.first_seq:
        return "[the answer is in the archive of the subagent's session]"
    body = thread[seq].body
    return body.content if isinstance(body, AssistantMessage) else ""


def note_reported(state: State) -> Decision:
    """Record that the result has been sent, or that the parent has ended."""
    assignment = state.assignment
    if assignment is None:
        return Decision(state)
    reported = replace(assignment, step="over" if state.closed else "reported")
    return Decision(replace(state, assignment=reported))


def is_over(state: State) -> bool:
    """Whether the session is to close: it has reported, and it has no other request."""
    assignment = state.assignment
    return assignment is not None and assignment.step == "reported" and state.at_rest and not state.closed
