"""Budgets of model calls, corrected by what the provider has counted and by what it has refused, as too long or else.

Our token counts are exact under an encoding that need not be the model's own: the tokenizers of many models are not
public. A call's budget is the policy's, divided by the ratio of the provider's counts to ours, and at most what the
last refusal has left. It is sent as the call's `max_input_tokens`, which the reply's recipe records too, so that the
context can be rebuilt exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from clew_workflows.contract import Limits, Task
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import Refused, RefusedKind
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import CallModel, Failure, ModelAnswered
from clew_workflows.session.state import EIGHTHS, Learned, Request, Run, Settings, Spent, State

# Limits of a session's usage: those of its configuration, and for a subagent those of its task.
#
# The usage of a session's subagents counts like its own.


def find_limits(state: State) -> tuple[int | None, float | None]:
    """Find the most tokens and the highest cost in USD that the session and its subagents may use; None: no limit."""
    limits: list[Limits | Task] = [state.settings.config.limits]
    if state.assignment:
        limits.append(state.assignment.task)
    tokens = [limit.max_total_tokens for limit in limits if limit.max_total_tokens is not None]
    costs = [limit.max_cost_usd for limit in limits if limit.max_cost_usd is not None]
    return min(tokens, default=None), min(costs, default=None)


def find_reached_limit(max_tokens: int | None, max_cost: float | None, spent: Spent) -> Failure | None:
    """Return a failure if what is spent reaches a limit."""
    if max_tokens is not None and (tokens := spent.tokens) >= max_tokens:
        message = f"the session has used {tokens} tokens of the {max_tokens} that its limits allow"
        return Failure(type="token_limit", message=message)
    if max_cost is not None and (cost := spent.cost_usd) >= max_cost:
        message = f"the session has cost {cost:.4f} USD of the {max_cost} that its limits allow"
        return Failure(type="cost_limit", message=message)
    return None


MAX_EIGHTHS = 4 * EIGHTHS
IGNORED_DIFFERENCE = 50
"""Ignore differences below 2 % (1/50): message framing varies by provider."""
MIN_STEPS_DOWN = 2
"""Eighths by which a ratio must fall before it is lowered: each change costs the provider's cache its prefix."""
MAX_MODELS = 16
"""Models that a session remembers measurements of; the newest are kept."""
_MAX_TOKEN_COUNT = 2**53 - 1

NOTHING_LEARNED = Learned()


def make_call_policy(settings: Settings, request: Request) -> ContextPolicy | None:
    """Make what a request's next call changes of the session's policy: a smaller budget, if its model takes less."""
    tighter = _find_tighter(settings, request.model, request.policy)
    return request.context_policy.overlay(tighter) if request.context_policy else tighter


def find_policy(settings: Settings) -> ContextPolicy:
    """Find the policy of the session's calls: its own, with the budget that its model takes."""
    return settings.policy.overlay(_find_tighter(settings, settings.model, settings.policy))


def _find_tighter(settings: Settings, model: str, policy: ContextPolicy) -> ContextPolicy | None:
    """Find the smaller budget that a model takes, as a change of the policy; None: it takes the policy's."""
    learned = settings.learned.get(model)
    if learned is None or (budget := learned.reduce(policy.budget)) >= policy.budget:
        return None
    return ContextPolicy(max_input_tokens=budget + policy.reserve_output_tokens)


def note_reply(settings: Settings, run: Run, answer: ModelAnswered) -> Settings:
    """Learn from a reply how its provider counts tokens."""
    model, usage = run.request.model, answer.reply.usage
    learned = learn_ratio(settings.learned, model, run.policy, answer.input_tokens, usage)
    return settings if learned is settings.learned else replace(settings, learned=learned)


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


def compute_budget_left(run: Run, refusal: Failure) -> int | None:
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
        room = max(limit - (run.request.options.max_output_tokens or 0), limit // 2)
        if theirs:
            budget = room * ours * 9 // (theirs * 10)
        elif room < ours:
            budget = room * 9 // 10
    budget = min(budget, ours * 9 // 10, run.policy.budget)
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


# What providers refuse of a context: requests are made without it from then on.


MAX_REFUSED = 1000
"""Refused items of a model that a session remembers; the newest are kept."""


def list_new_refusals(call: CallModel, refused: Iterable[Refused]) -> list[Refused]:
    """List what the provider has refused during a call, and had not before."""
    known = {(group.kind, name) for group in call.refused for name in group.ids}
    groups = (
        replace(group, ids=tuple(name for name in group.ids if (group.kind, name) not in known)) for group in refused
    )
    return [group for group in groups if group.ids]


def learn_refused(
    refused: Mapping[str, tuple[Refused, ...]], model: str, groups: Iterable[Refused]
) -> Mapping[str, tuple[Refused, ...]]:
    """Remember what a model's provider refuses."""
    reasons: dict[tuple[RefusedKind, str], str] = {
        (group.kind, name): group.reason for group in refused.get(model, ()) for name in group.ids
    }
    known = len(reasons)
    for group in groups:
        for name in group.ids:
            reasons.setdefault((group.kind, name), group.reason)
    if len(reasons) == known:
        return refused
    ids: dict[tuple[RefusedKind, str], list[str]] = {}
    for (kind, name), reason in list(reasons.items())[-MAX_REFUSED:]:
        ids.setdefault((kind, reason), []).append(name)
    learned = tuple(Refused(kind=kind, ids=tuple(names), reason=reason) for (kind, reason), names in ids.items())
    others = [item for item in refused.items() if item[0] != model]
    return dict([*others, (model, learned)][-MAX_MODELS:])
