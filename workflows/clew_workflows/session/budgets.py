"""Budgets of model calls, corrected by what the provider has counted and by what it has refused as too long.

Our token counts are exact under an encoding that need not be the model's own: the tokenizers of many models are not
public. A call's budget is the policy's, divided by the ratio of the provider's counts to ours, and at most what the
last refusal has left. It is sent as the call's `max_input_tokens`, which the reply's recipe records too, so that the
context can be rebuilt exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import CallModel, Failure, ModelAnswered
from clew_workflows.session.state import EIGHTHS, Learned, Request, State

# Limits of a session's usage: those of its configuration, and for a subagent those of its task.
#
# The usage of a session's subagents counts like its own.


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


MAX_EIGHTHS = 4 * EIGHTHS
IGNORED_DIFFERENCE = 50
"""Ignore differences below 2 % (1/50): message framing varies by provider."""
MIN_STEPS_DOWN = 2
"""Eighths by which a ratio must fall before it is lowered: each change costs the provider's cache its prefix."""
MAX_MODELS = 16
"""Models that a session remembers measurements of; the newest are kept."""
_MAX_TOKEN_COUNT = 2**53 - 1

NOTHING_LEARNED = Learned()


def make_call_policy(state: State, request: Request) -> ContextPolicy | None:
    """Return the request's policy changes, with a smaller budget if the model takes less than the policy allows."""
    own, policy = request.context_policy, state.policy.overlay(request.context_policy)
    budget = state.learned.get(request.model, NOTHING_LEARNED).reduce(policy.budget)
    if budget >= policy.budget:
        return own
    tighter = ContextPolicy(max_input_tokens=budget + policy.reserve_output_tokens)
    return own.overlay(tighter) if own else tighter


def note_reply(state: State, call: CallModel, answer: ModelAnswered) -> State:
    """Learn from a reply how its provider counts tokens."""
    policy, usage = state.policy.overlay(call.context_policy), answer.reply.usage
    return replace(state, learned=learn_ratio(state.learned, call.model, policy, answer.input_tokens, usage))


def learn_ratio(
    learned: Mapping[str, Learned], model: str, policy: ContextPolicy, ours: int, usage: Usage
) -> Mapping[str, Learned]:
    """Learn a model's ratio from a context that has `ours` tokens by our count, and from the usage of its call.

    An estimated usage is ignored: it is our own count. A context that fills less than half of its budget is ignored:
    the tokens that a provider adds to every prompt weigh too much there. A count below half of ours is ignored: the
    provider has left out cached tokens. The ratio rises at once, and falls only by `MIN_STEPS_DOWN` eighths or more.
    """
    known, theirs = learned.get(model, NOTHING_LEARNED), usage.input_tokens
    if usage.estimated_calls:
        return learned
    if ours <= 0 or 2 * ours < policy.budget or 2 * theirs < ours or policy.token_estimator != "exact":
        return learned
    measured = min(max(-(-EIGHTHS * (theirs - ours // IGNORED_DIFFERENCE) // ours), EIGHTHS), MAX_EIGHTHS)
    if known.eighths - MIN_STEPS_DOWN < measured <= known.eighths:
        return learned
    return _remember(learned, model, replace(known, eighths=measured))


def compute_budget_left(state: State, call: CallModel, refusal: Failure) -> int | None:
    """Compute the budget for another attempt after a refusal, in our tokens; None: another attempt has no chance.

    A worker reports how many tokens by our count were refused (`counted`). A limit that the provider reports is used
    with a margin of a tenth. The reply's tokens are subtracted from it, down to half of the limit at most.
    """
    ours = _read_token_count(refusal.details.get("counted"))
    if ours is None:
        return None
    limit, theirs = _read_token_count(refusal.details.get("limit")), _read_token_count(refusal.details.get("actual"))
    budget = ours // 2
    if limit:
        room = max(limit - (call.options.max_output_tokens or 0), limit // 2)
        if theirs:
            budget = room * ours * 9 // (theirs * 10)
        elif room < ours:
            budget = room * 9 // 10
    policy = state.policy.overlay(call.context_policy)
    budget = min(budget, ours * 9 // 10, policy.budget)
    return budget if budget > 0 else None


def learn_refusal(learned: Mapping[str, Learned], model: str, budget: int) -> Mapping[str, Learned]:
    """Remember the budget that a refusal has left."""
    known = learned.get(model, NOTHING_LEARNED)
    least = budget if known.budget is None else min(budget, known.budget)
    return _remember(learned, model, replace(known, budget=least))


def _remember(learned: Mapping[str, Learned], model: str, known: Learned) -> Mapping[str, Learned]:
    others = [item for item in learned.items() if item[0] != model]
    return dict([*others, (model, known)][-MAX_MODELS:])


def _read_token_count(value: object) -> int | None:
    """Return a reported number of tokens if it is plausible."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_TOKEN_COUNT else None
