"""What a model takes, by what its provider has said: what it refused as too long, and what it counted.

Our counts are exact under an encoding, which need not be the model's own: of many families the tokenizer is not
public. So a call's budget is that of the policy in force, less by the ratio of the provider's counts to ours, and
never more than a refusal has left. It reaches the model as the call's own `max_input_tokens`, and with it the recipe:
contexts are made again from entries as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clew.contract.policy import ContextPolicy
from clew_workflows.core.state import EIGHTHS, Learned, Request, State
from clew_workflows.protocol import CallModel, Failure, ModelAnswered

MAX_EIGHTHS = 4 * EIGHTHS
IGNORED_DIFFERENCE = 50
"""A fiftieth of the tokens is no difference: messages are framed a little otherwise everywhere."""
MIN_STEPS_DOWN = 2
"""So many steps lower must a ratio be seen before it is believed: each move costs a provider's cache its prefix."""
MAX_MODELS = 16
"""Of how many models a session knows something; the newest are kept."""
_MAX_TOKEN_COUNT = 2**53 - 1

NOTHING_LEARNED = Learned()


def make_call_policy(state: State, request: Request) -> ContextPolicy | None:
    """The request's own policy, with less room where its model takes less than the policy in force allows."""
    own, policy = request.context_policy, state.policy.overlay(request.context_policy)
    budget = state.learned.get(request.model, NOTHING_LEARNED).reduce(policy.budget)
    if budget >= policy.budget:
        return own
    tighter = ContextPolicy(max_input_tokens=budget + policy.reserve_output_tokens)
    return own.overlay(tighter) if own else tighter


def note_reply(state: State, call: CallModel, answer: ModelAnswered) -> State:
    """The session with what a reply tells of how its provider counts."""
    policy = state.policy.overlay(call.context_policy)
    told = answer.reply.usage.input_tokens
    return replace(state, learned=learn_ratio(state.learned, call.model, policy, answer.input_tokens, told))


def learn_ratio(
    learned: Mapping[str, Learned], model: str, policy: ContextPolicy, ours: int, theirs: int
) -> Mapping[str, Learned]:
    """What is known when a provider has counted a context, made under a policy, that has so many tokens of ours.

    Only contexts that fill half their budget count: what a provider adds to every prompt weighs little there. Who
    tells of less than half has left out what was cached. A ratio goes up at once, and down when it is clearly lower.
    """
    known = learned.get(model, NOTHING_LEARNED)
    if ours <= 0 or 2 * ours < policy.budget or 2 * theirs < ours or policy.token_estimator != "exact":
        return learned
    seen = min(max(-(-EIGHTHS * (theirs - ours // IGNORED_DIFFERENCE) // ours), EIGHTHS), MAX_EIGHTHS)
    if known.eighths - MIN_STEPS_DOWN < seen <= known.eighths:
        return learned
    return _remember(learned, model, replace(known, eighths=seen))


def compute_budget_left(state: State, call: CallModel, refusal: Failure) -> int | None:
    """What a refusal leaves of the budget for another attempt, in tokens of ours; None: nothing to try it with.

    Workers tell how many tokens of ours were refused. What the provider tells is taken with a tenth to spare. The
    reply's room is taken off the window, but for a window that would hardly have any left.
    """
    ours = _read_token_count(refusal.details.get("counted"))
    if ours is None:
        return None
    limit, theirs = _read_token_count(refusal.details.get("limit")), _read_token_count(refusal.details.get("actual"))
    left = ours // 2
    if limit:
        room = max(limit - (call.options.max_output_tokens or 0), limit // 2)
        if theirs:
            left = room * ours * 9 // (theirs * 10)
        elif room < ours:
            left = room * 9 // 10
    policy = state.policy.overlay(call.context_policy)
    left = min(left, ours * 9 // 10, policy.budget)
    return left if left > 0 else None


def learn_refusal(learned: Mapping[str, Learned], model: str, budget: int) -> Mapping[str, Learned]:
    """What is known when a refusal has left a budget."""
    known = learned.get(model, NOTHING_LEARNED)
    least = budget if known.budget is None else min(budget, known.budget)
    return _remember(learned, model, replace(known, budget=least))


def _remember(learned: Mapping[str, Learned], model: str, known: Learned) -> Mapping[str, Learned]:
    others = [item for item in learned.items() if item[0] != model]
    return dict([*others, (model, known)][-MAX_MODELS:])


def _read_token_count(told: object) -> int | None:
    """A number of tokens that a provider, or whoever speaks for one, may mean."""
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= _MAX_TOKEN_COUNT else None
