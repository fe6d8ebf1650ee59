"""Subagents: the task that a child starts with, and what follows from its result or its failure."""

from __future__ import annotations

from dataclasses import replace

from clew.contract import SessionConfig, SessionStart, SubagentResultInput, Task
from clew.contract.payloads import Subagent
from clew.errors import UnknownToolCall
from clew_workflows.core import children, tool_rounds
from clew_workflows.core.calls import Child, RequestedCall
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State, get_run
from clew_workflows.protocol import ToolAnswered

TASK_REQUEST = "task"
"""The id of the request with which a subagent serves its task."""
CANCELLED = "the session that started this subagent no longer waits for it"
"""The reason with which children are cancelled."""


def make_start(state: State, child: Child, at: Moment) -> SessionStart | None:
    """Make the argument that starts a child; None: its call has ended."""
    run, call = state.run, _find_open_call(state, child)
    if run is None or call is None:
        return None
    now = at.time if run.paused_at is None else run.paused_at
    config = SessionConfig(agent=child.agent)
    if state.config.metadata:
        config = SessionConfig(agent=child.agent, metadata=state.config.metadata)
    depth = state.assignment.task.depth if state.assignment else 0
    task = Task(
        content=str(call.arguments.get("task", "")),
        request_id=TASK_REQUEST,
        session_id=state.session_id,
        tool_call_id=child.tool_call_id,
        depth=depth + 1,
        timeout_seconds=max(int(run.deadline - now), 1),
        max_result_bytes=state.config.limits.max_tool_result_bytes,
        max_total_tokens=child.max_total_tokens,
        max_cost_usd=child.max_cost_usd,
    )
    return SessionStart(config=config, task=task)


def mark_started(state: State, child: Child) -> Decision:
    """Record that a child is being started."""
    return Decision(children.update_child(state, child, replace(child, step="working")))


def mark_cancelled(state: State, child: Child) -> Decision:
    """Record that a child is being cancelled. It stays until it reports what it has used."""
    return Decision(children.update_child(state, child, replace(child, step="cancelled")))


def take_result(state: State, command: SubagentResultInput) -> Decision:
    """Commit the result of a child. A repetition, and one whose call has ended, leaves no entry.

    Raises:
        UnknownToolCall: The result is of no subagent of the session.
    """
    child = children.find_child(state, command.tool_call_id)
    if child is None or child.session_id != command.session_id:
        if command.session_id == children.make_child_id(state.session_id, command.tool_call_id):
            return Decision(state)
        raise UnknownToolCall(f"session {command.session_id!r} is no subagent of tool call {command.tool_call_id!r}")
    state = children.update_child(state, child, None)
    state = replace(state, subagent_usage=state.subagent_usage.plus(command.usage))
    run, call = state.run, _find_open_call(state, child)
    if run is None or call is None:
        return Decision(state)
    run = replace(
        run,
        subagent_usage=run.subagent_usage.plus(command.usage),
        worked_seconds=max(run.worked_seconds, command.worked_seconds),
    )
    subagent = Subagent(session_id=child.session_id, agent=child.agent, usage=command.usage)
    answer = ToolAnswered(content=_make_text(command), is_error=command.status != "completed", subagent=subagent)
    return tool_rounds.commit_result(replace(state, run=run), run, call, answer)


def take_failure(state: State, child: Child, reason: str) -> Decision:
    """Commit an error for a child whose session could not start, or has ended without a result."""
    if state.closed or children.find_child(state, child.tool_call_id) is None:
        return Decision(state)
    call = _find_open_call(state, child)
    state = children.update_child(state, child, None)
    if call is None:
        return Decision(state)
    subagent = Subagent(session_id=child.session_id, agent=child.agent)
    content = f"error: the subagent gave no result: {reason}"
    answer = ToolAnswered(content=content, is_error=True, subagent=subagent)
    return tool_rounds.commit_result(state, get_run(state), call, answer)


def _find_open_call(state: State, child: Child) -> RequestedCall | None:
    calls = tool_rounds.list_outside(state)
    return next((call for call in calls if call.tool_call_id == child.tool_call_id), None)


def _make_text(result: SubagentResultInput) -> str:
    """Make the text that the model reads."""
    if result.status == "completed":
        return result.content or f"[the subagent ended without a text ({result.reason})]"
    details = f"{result.reason}: {result.content}" if result.content else result.reason
    return f"error: the subagent {'failed' if result.status == 'failed' else 'was cancelled'}: {details}"
