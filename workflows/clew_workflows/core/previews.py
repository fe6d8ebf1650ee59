"""Previews: the context of a model call that might follow. Nothing is committed."""

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
from clew_workflows.core.run import Request
from clew_workflows.core.state import State


def build_preview(state: State, thread: Thread, query: ContextQuery, pending: Sequence[PendingMessage]) -> Projection:
    """Build the context of the call that would follow if the pending messages were sent in one request.

    It is projected from a copy of the thread that has these messages, so that it equals the real context if they are
    sent next. If the context does not fit, the answer has no messages and its `meta` names the part that is too
    large.

    Raises:
        Archived: The context needs entries that are in the archive alone.
        InvalidInput: The policy names an unknown projector, or its fields contradict each other.
        InvalidTokenBudget: The policy leaves no budget.
    """
    request = make_preview_request(state, query)
    upto = thread.last_seq if query.at_seq is None else min(query.at_seq, thread.last_seq)
    lane = query.context_ref or thread.find_active_lane(upto)
    policy = budgets.make_call_policy(state, request)
    extended = _commit_pending(state, thread, upto, lane, pending)
    effective = _find_policy(extended, policy)
    try:
        context = build_context(extended, context_ref=lane, policy=policy, model=request.model)
    except ContextOverflow as error:
        context = _make_overflow(error, effective)
    ratio = state.learned.get(request.model, budgets.NOTHING_LEARNED).ratio
    meta = context.meta.model_copy(
        update={
            "basis_rev": upto + 1,
            "basis_last_seq": upto,
            "entries_total": upto + 1,
            "entries_included": sum(seq <= upto for block in context.blocks for seq in block.seqs),
            "pending_count": len(pending),
            "fits": context.meta.overflow is None,
            "budget": effective.budget,
            "model": request.model,
            "max_output_tokens": request.options.max_output_tokens,
            "token_ratio": ratio if ratio > 1 else None,
        }
    )
    return Projection(context.messages, context.tool_spec, _add_costs(state, request, meta))


def make_preview_request(state: State, query: ContextQuery) -> Request:
    """Make the request of a preview: the session's settings, with the policy of the query.

    Raises:
        InvalidInput: The policy names an unknown projector, or its fields contradict each other.
        InvalidTokenBudget: The policy leaves no budget.
    """
    return make_request(state, MessageInput(content="", context_policy=query.context_policy), "preview")


def _add_costs(state: State, request: Request, meta: ContextMeta) -> ContextMeta:
    """Add the costs to a preview's `meta`, if the context fits and the model's prices are known."""
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
    """Copy the thread up to a seq, and commit the messages in the copy as the first ones of a run."""
    if upto < thread.retained.upto:
        raise Archived(f"entry {upto} is in the archive: read it through ReadContext")
    extended = Thread(thread.slice(thread.first_seq, upto), thread.first_seq, thread.retained)
    count = load_encoding(state.config.encoding)
    refs: Refs = {"run_id": f"run-{state.runs + 1}"}
    for message in pending:
        draft = Draft(UserMessage(context_ref=lane, role="user", content=message.content), refs)
        extended.append(draft.commit(extended.rev, "pending", "", count))
    return extended


def _find_policy(thread: Thread, policy: ContextPolicy | None) -> ContextPolicy:
    config = thread.find_config(thread.last_seq)
    return (config.read(ConfigPayload).policy if config else ContextPolicy()).overlay(policy)


def _make_overflow(error: ContextOverflow, policy: ContextPolicy) -> Projection:
    """Make the answer for a context that does not fit."""
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
