"""Previews: what a model would be shown if something were asked. Nothing is committed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.context.contexts import build_context
from clew.context.projection import Projection
from clew.contract import ContextQuery, MessageInput, PendingMessage
from clew.contract.outputs import ContextMeta, Overflow
from clew.contract.payloads import ConfigPayload, UserMessage
from clew.contract.policy import ContextPolicy
from clew.errors import Archived, ContextOverflow
from clew.model.canonical import compute_digest
from clew.model.prices import compute_cost_usd
from clew.model.tokens import load_encoding
from clew.outcomes import Usage
from clew.thread.entries import Draft, Refs
from clew.thread.thread import Thread
from clew_workflows.core import budgets
from clew_workflows.core.requests import make_request
from clew_workflows.core.state import Request, State


def build_preview(state: State, thread: Thread, query: ContextQuery, pending: Sequence[PendingMessage]) -> Projection:
    """The context of the call that would follow if the pending messages were asked in one request.

    It is projected from the thread as it would be then, so that it is what the model sees if they are asked next.
    What does not fit is answered: a context without messages, whose `meta` names the part that is too large.

    Raises:
        Archived: the thread does not keep enough of its past.
        InvalidInput, InvalidTokenBudget: the policy cannot be used.
    """
    request = make_preview_request(state, query)
    upto = thread.last_seq if query.at_seq is None else min(query.at_seq, thread.last_seq)
    lane = query.context_ref or thread.find_active_lane(upto)
    policy = budgets.make_call_policy(state, request)
    after = _commit_pending(state, thread, upto, lane, pending)
    in_force = _find_policy(after, policy)
    try:
        shown = build_context(after, context_ref=lane, policy=policy, model=request.model)
    except ContextOverflow as error:
        shown = _make_overflow(error, in_force)
    ratio = state.learned.get(request.model, budgets.NOTHING_LEARNED).ratio
    meta = shown.meta.model_copy(
        update={
            "basis_rev": upto + 1,
            "basis_last_seq": upto,
            "entries_total": upto + 1,
            "entries_included": sum(seq <= upto for block in shown.blocks for seq in block.seqs),
            "pending_count": len(pending),
            "fits": shown.meta.overflow is None,
            "budget": in_force.budget,
            "model": request.model,
            "max_output_tokens": request.options.max_output_tokens,
            "token_ratio": ratio if ratio > 1 else None,
        }
    )
    return Projection(shown.messages, shown.tool_spec, _add_costs(state, request, meta))


def make_preview_request(state: State, query: ContextQuery) -> Request:
    """The request that a preview is made for: the session's settings, with the policy that the query brings.

    Raises:
        InvalidInput, InvalidTokenBudget: the policy cannot be used.
    """
    return make_request(state, MessageInput(content="", context_policy=query.context_policy), "preview")


def _add_costs(state: State, request: Request, meta: ContextMeta) -> ContextMeta:
    """A preview's `meta` with its costs, where it fits and its model's prices are known."""
    profile = state.profiles.get(request.model)
    if profile is None or not meta.fits:
        return meta
    prompt = Usage(input_tokens=math.ceil(meta.estimated_tokens * (meta.token_ratio or 1)))
    with_reply = prompt.plus(Usage(output_tokens=meta.max_output_tokens or 0))
    prices = profile.prices
    costs = {
        "input_cost_usd": compute_cost_usd(prices, prompt),
        "cost_usd_at_most": compute_cost_usd(prices, with_reply),
    }
    return meta.model_copy(update=costs)


def _commit_pending(state: State, thread: Thread, upto: int, lane: str, pending: Sequence[PendingMessage]) -> Thread:
    """A copy of the thread up to a seq, with the messages committed behind it as a run's first."""
    if upto < thread.retained.upto:
        raise Archived(f"entry {upto} is in the archive: read it through ReadContext")
    after = Thread(thread.slice(thread.first_seq, upto), thread.first_seq, thread.retained)
    count = load_encoding(state.config.encoding)
    refs: Refs = {"run_id": f"run-{state.runs + 1}"}
    for message in pending:
        draft = Draft(UserMessage(context_ref=lane, role="user", content=message.content), refs)
        after.append(draft.commit(after.rev, "pending", "", count))
    return after


def _find_policy(thread: Thread, policy: ContextPolicy | None) -> ContextPolicy:
    config = thread.find_config(thread.last_seq)
    return (config.read(ConfigPayload).policy if config else ContextPolicy()).overlay(policy)


def _make_overflow(error: ContextOverflow, policy: ContextPolicy) -> Projection:
    """The answer for a context that cannot be made, in place of one."""
    meta = ContextMeta(
        basis_rev=0,
        basis_last_seq=-1,
        pending_count=0,
        truncated=True,
        estimated_tokens=policy.budget - error.available + error.needed,
        summary_used=False,
        needs_summary=False,
        entries_included=0,
        entries_total=0,
        policy_hash=policy.hash,
        digest=compute_digest({"messages": [], "tool_spec": [], "output_schema": None}),
        overflow=Overflow(part=error.part, needed=error.needed, available=error.available),
    )
    return Projection([], [], meta)
