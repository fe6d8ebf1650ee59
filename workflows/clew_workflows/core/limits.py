"""Limits of a session's usage: those of its configuration, and for a subagent those of its task.

The usage of a session's subagents counts like its own.
"""

from __future__ import annotations

from typing import TypeVar

from clew_workflows.core.state import State
from clew_workflows.protocol import Failure

N = TypeVar("N", int, float)


def find_token_limit(state: State) -> int | None:
    """Find the most tokens that the session and its subagents may use; None: there is no limit."""
    task = state.assignment.task if state.assignment else None
    return _lower(state.config.limits.max_total_tokens, task.max_total_tokens if task else None)


def find_cost_limit(state: State) -> float | None:
    """Find the highest cost of the session and its subagents, in USD; None: there is no limit."""
    task = state.assignment.task if state.assignment else None
    return _lower(state.config.limits.max_cost_usd, task.max_cost_usd if task else None)


def find_reached_limit(state: State) -> Failure | None:
    """Return a failure if the session has reached a limit."""
    max_tokens, max_cost = find_token_limit(state), find_cost_limit(state)
    if max_tokens is not None and (tokens := count_tokens(state)) >= max_tokens:
        message = f"the session has used {tokens} tokens of the {max_tokens} that its limits allow"
        return Failure(type="token_limit", message=message)
    if max_cost is not None and (cost := sum_cost(state)) >= max_cost:
        message = f"the session has cost {cost:.4f} USD of the {max_cost} that its limits allow"
        return Failure(type="cost_limit", message=message)
    return None


def count_tokens(state: State) -> int:
    """Count the tokens that the session and its subagents have used."""
    used = state.usage.plus(state.subagent_usage)
    return used.input_tokens + used.output_tokens


def sum_cost(state: State) -> float:
    """Sum the cost of the session and its subagents, in USD."""
    return state.usage.plus(state.subagent_usage).cost_usd or 0.0


def _lower(one: N | None, other: N | None) -> N | None:
    """Return the lower of two limits, either of which may be absent."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
