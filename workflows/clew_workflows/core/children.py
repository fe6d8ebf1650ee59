"""The sessions of subagents: the calls that start them, their shares of the session's limits, and their ends.

A child is part of the state from its call until it has reported. What it may spend is reserved for so long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from clew.contract import MAX_SUBAGENT_DEPTH
from clew.model.canonical import compute_digest
from clew_workflows.core import limits, tool_rounds
from clew_workflows.core.calls import Child, RequestedCall
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import AgentRoute, ToolAnswered

MAX_PREFIX_CHARACTERS = 160
"""Longest id of a session that the ids of its subagents begin with; a longer one is hashed."""


def make_child_id(session_id: str, tool_call_id: str) -> str:
    """Make the id of the session that a tool call starts."""
    prefix = session_id if len(session_id) <= MAX_PREFIX_CHARACTERS else compute_digest(session_id)
    return f"{prefix}.{tool_call_id}"


def open_children(state: State, at: Moment) -> Decision:
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
        return _refuse(state, [call for call, _ in calls], problem, at)
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
    max_tokens, max_cost = limits.find_token_limit(state), limits.find_cost_limit(state)
    tokens = sum(child.max_total_tokens or 0 for child in state.children) + limits.count_tokens(state)
    cost = sum(child.max_cost_usd or 0.0 for child in state.children) + limits.sum_cost(state)
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


def _refuse(state: State, calls: Sequence[RequestedCall], problem: str, at: Moment) -> Decision:
    answer = ToolAnswered(content=f"error: {problem}", is_error=True)
    decision = Decision(state)
    for call in calls:
        decision = decision.then(partial(_refuse_call, call, answer), at)
    return decision


def _refuse_call(call: RequestedCall, answer: ToolAnswered, state: State, _at: Moment) -> Decision:
    return tool_rounds.commit_result(state, state.run, call, answer) if state.run else Decision(state)


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


def release_children(state: State) -> State:
    """Let all children end, because the run has ended whose calls they work on."""
    for child in state.children:
        state = release_child(state, child.tool_call_id)
    return state
