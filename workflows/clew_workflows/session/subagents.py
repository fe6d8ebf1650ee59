"""Subagents: the task that a child starts with, and what follows from its result or its failure."""

from __future__ import annotations

from dataclasses import replace

from clew_workflows.contract import MessageInput, SessionConfig, SessionStart, SubagentResultInput, Task
from clew_workflows.contract.errors import UnknownToolCall
from clew_workflows.contract.limits import MAX_SUBAGENT_DEPTH
from clew_workflows.contract.messages import truncate_result
from clew_workflows.contract.names import make_child_id
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.payloads import AssistantMessage, Subagent
from clew_workflows.protocol import AgentRoute, ToolAnswered
from clew_workflows.session import budgets, requests, tool_rounds
from clew_workflows.session.state import Assignment, Child, Decision, Moment, RequestedCall, Run, State, get_run
from clew_workflows.thread.thread import Thread

# The work of a session that is a subagent: it serves one task, reports the result, and closes.


def assign(state: State, task: Task) -> State:
    """Put the request of a task into the queue of a new session."""
    state = replace(state, assignment=Assignment(task.model_copy(update={"content": ""})))
    request = requests.make_request(state, MessageInput(content=task.content), task.request_id)
    return replace(state, queue=(request,))


def end_work(state: State, run: Run, at: Moment) -> State:
    """Note how long the request of the task has taken, as its run ends, and let the children of the run end."""
    for child in state.children:
        state = release_child(state, child.tool_call_id)
    assignment = state.assignment
    if assignment is None or run.request.request_id != assignment.task.request_id:
        return state
    worked = max(run.request.timeout_seconds - run.clock.measure_left(at.time), 0.0)
    return replace(state, assignment=replace(assignment, worked_seconds=worked))


def find_task_result(state: State, thread: Thread) -> SubagentResultInput | None:
    """Find the result that is to be reported; None: the task is not over, or has been reported."""
    assignment = state.assignment
    if assignment is None or assignment.step != "open":
        return None
    task = assignment.task
    outcome = requests.find_outcome(state, thread, task.request_id)
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
        usage=state.spent.total,
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
    return body.text if isinstance(body, AssistantMessage) else ""


def note_reported(state: State) -> Decision:
    """Record that the result has been sent, or that the parent has ended."""
    assignment = state.assignment
    if assignment is None:
        return Decision(state)
    reported = replace(assignment, step="over" if state.closed else "reported")
    return Decision(replace(state, assignment=reported))


def is_task_over(state: State) -> bool:
    """Whether the session is to close: it has reported, and it has no other request."""
    assignment = state.assignment
    return assignment is not None and assignment.step == "reported" and state.at_rest and not state.closed


# The sessions of subagents: the calls that start them, their shares of the session's limits, and their ends.
#
# A child is part of the state from its call until it has reported. What it may spend is reserved for so long.


def open_children(state: State) -> Decision:
    """Add a child for each open call of the round that needs one, with its share of what may still be spent.

    Calls of the round that still wait for an approval keep their shares. If the session may not have subagents at its
    depth, or nothing is left for them, the calls get an error.
    """
    run = state.run
    without_child = [
        (call, call.route)
        for call in (run.tool_calls if run else ())
        if isinstance(call.route, AgentRoute) and not call.returned and not find_child(state, call.tool_call_id)
    ]
    calls = [(call, route) for call, route in without_child if call.has_begun]
    if not calls:
        return Decision(state)
    tokens, cost = _share(state, len(without_child))
    if problem := _find_problem(state, tokens, cost):
        answer, decision = ToolAnswered(content=f"error: {problem}", is_error=True), Decision(state)
        for call, _ in calls:
            committed = tool_rounds.commit_result(decision.state, get_run(decision.state), call, answer)
            decision = committed.prepend(*decision.commit)
        return decision
    children = (
        Child(
            call.tool_call_id,
            route.agent,
            make_child_id(state.session_id, call.tool_call_id),
            max_total_tokens=tokens,
            max_cost_usd=cost,
        )
        for call, route in calls
    )
    return Decision(replace(state, children=(*state.children, *children)))


def _share(state: State, parts: int) -> tuple[int | None, float | None]:
    """Divide the tokens and the cost that are neither used nor reserved; None: there is no limit."""
    max_tokens, max_cost = budgets.find_limits(state)
    tokens = sum(child.max_total_tokens or 0 for child in state.children) + state.spent.tokens
    cost = sum(child.max_cost_usd or 0.0 for child in state.children) + state.spent.cost_usd
    return (
        None if max_tokens is None else max(max_tokens - tokens, 0) // parts,
        None if max_cost is None else max(max_cost - cost, 0.0) / parts,
    )


def _find_problem(state: State, tokens: int | None, cost: float | None) -> str | None:
    if state.assignment and state.assignment.task.depth >= MAX_SUBAGENT_DEPTH:
        return f"this session is a subagent at depth {MAX_SUBAGENT_DEPTH}, which starts no subagents of its own"
    if tokens == 0:
        return "token_limit: the limits of the session leave no tokens for a subagent"
    if cost == 0:
        return "cost_limit: the limits of the session leave no cost for a subagent"
    return None


def find_child(state: State, tool_call_id: str) -> Child | None:
    """Find the child that works on a tool call."""
    return next((child for child in state.children if child.tool_call_id == tool_call_id), None)


def update_child(state: State, child: Child, after: Child | None) -> State:
    """Replace a child; None: remove it, so that nothing is reserved for it any longer."""
    children = tuple(
        kept
        for other in state.children
        if (kept := after if other.tool_call_id == child.tool_call_id else other) is not None
    )
    return replace(state, children=children)


def release_child(state: State, tool_call_id: str) -> State:
    """Let a child end whose call has ended without it. One that was not started is removed."""
    child = find_child(state, tool_call_id)
    if child is None or child.step in ("cancel", "cancelled"):
        return state
    return update_child(state, child, None if child.step == "start" else replace(child, step="cancel"))


TASK_REQUEST = "task"
"""The id of the request with which a subagent serves its task."""
CANCELLED = "the session that started this subagent no longer waits for it"
"""The reason with which children are cancelled."""


def make_start(state: State, child: Child, at: Moment) -> SessionStart | None:
    """Make the argument that starts a child; None: its call has ended."""
    run, call = state.run, _find_open_call(state, child)
    if run is None or call is None:
        return None
    config = SessionConfig(agent=child.agent)
    if state.settings.config.metadata:
        config = SessionConfig(agent=child.agent, metadata=state.settings.config.metadata)
    depth = state.assignment.task.depth if state.assignment else 0
    task = Task(
        content=str(call.arguments.get("task", "")),
        request_id=TASK_REQUEST,
        session_id=state.session_id,
        tool_call_id=child.tool_call_id,
        depth=depth + 1,
        timeout_seconds=max(int(run.clock.measure_left(at.time)), 1),
        max_result_bytes=state.settings.config.limits.max_tool_result_bytes,
        max_total_tokens=child.max_total_tokens,
        max_cost_usd=child.max_cost_usd,
    )
    return SessionStart(config=config, task=task, after="")


def mark_started(state: State, child: Child) -> Decision:
    """Record that a child is being started."""
    return Decision(update_child(state, child, replace(child, step="working")))


def mark_cancelled(state: State, child: Child) -> Decision:
    """Record that a child is being cancelled. It stays until it reports what it has used."""
    return Decision(update_child(state, child, replace(child, step="cancelled")))


def take_result(state: State, command: SubagentResultInput) -> Decision:
    """Commit the result of a child. A repetition, and one whose call has ended, leaves no entry.

    Raises:
        UnknownToolCall: The result is of no subagent of the session.
    """
    child = find_child(state, command.tool_call_id)
    if child is None or child.session_id != command.session_id:
        if command.session_id == make_child_id(state.session_id, command.tool_call_id):
            return Decision(state)
        raise UnknownToolCall(f"session {command.session_id!r} is no subagent of tool call {command.tool_call_id!r}")
    state = update_child(state, child, None)
    state = replace(state, spent=state.spent.add_subagent(command.usage))
    run, call = state.run, _find_open_call(state, child)
    if run is None or call is None:
        return Decision(state)
    run = replace(
        run,
        spent=run.spent.add_subagent(command.usage),
        clock=replace(run.clock, worked_seconds=max(run.clock.worked_seconds, command.worked_seconds)),
    )
    subagent = Subagent(session_id=child.session_id, agent=child.agent, usage=command.usage)
    failed = command.status == "failed"
    answer = ToolAnswered(
        content=_make_text(command),
        is_error=command.status != "completed",
        subagent=subagent,
        problem=command.content[:MAX_PROBLEM_CHARACTERS] if failed and command.reason not in _TOLD else None,
    )
    return tool_rounds.commit_result(replace(state, run=run), run, call, answer)


def take_failure(state: State, child: Child, reason: str) -> Decision:
    """Commit an error for a child whose session could not start, or has ended without a result."""
    if state.closed or find_child(state, child.tool_call_id) is None:
        return Decision(state)
    call = _find_open_call(state, child)
    state = update_child(state, child, None)
    if call is None:
        return Decision(state)
    subagent = Subagent(session_id=child.session_id, agent=child.agent)
    answer = ToolAnswered(
        content="error: the subagent gave no result", is_error=True, subagent=subagent, problem=reason
    )
    return tool_rounds.commit_result(state, get_run(state), call, answer)


def _find_open_call(state: State, child: Child) -> RequestedCall | None:
    calls = tool_rounds.list_outside(state)
    return next((call for call in calls if call.tool_call_id == child.tool_call_id), None)


def _make_text(result: SubagentResultInput) -> str:
    """Make the text that the model reads."""
    if result.status == "completed":
        return result.content or f"[the subagent ended without a text ({result.reason})]"
    is_told = result.content and (result.status != "failed" or result.reason in _TOLD)
    details = f"{result.reason}: {result.content}" if is_told else result.reason
    return f"error: the subagent {'failed' if result.status == 'failed' else 'was cancelled'}: {details}"


MAX_PROBLEM_CHARACTERS = 2000
_TOLD = (
    "context_overflow",
    "cost_limit",
    "invalid_output",
    "max_output_tokens",
    "refused_by_hook",
    "token_limit",
)
"""Failures of a subagent that are about its task, so that the model reads their words. Others name the operator's
setup: providers, agents and addresses."""
