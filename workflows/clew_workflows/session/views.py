"""Answers to queries: pure functions of the session's state and thread, in pages under 1 MB."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_core import to_json

from clew_workflows.contract import (
    ContextOperation,
    ContextQuery,
    EntriesQuery,
    FollowQuery,
    MessageInput,
    PendingMessage,
    TranscriptQuery,
    WindowQuery,
)
from clew_workflows.contract.errors import Archived, ContextOverflow, InvalidInput
from clew_workflows.contract.limits import MAX_PAGE_BYTES
from clew_workflows.contract.messages import ToolSpec, compute_digest
from clew_workflows.contract.outcomes import Usage, compute_cost_usd
from clew_workflows.contract.outputs import (
    ContextMeta,
    LiveStatus,
    OpenSubagent,
    Overflow,
    ParentSession,
    PendingCall,
    PendingExternalCall,
    PendingOperation,
    SessionStatus,
)
from clew_workflows.contract.payloads import ConfigPayload, UserMessage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.session import budgets, drafts, operations, outside, tool_rounds
from clew_workflows.session.advance import format_timestamp
from clew_workflows.session.requests import make_request
from clew_workflows.session.state import Child, Request, RequestedCall, State
from clew_workflows.thread.context.contexts import (
    build_context,
    build_window,
    find_own_settings,
    iterate_transcript,
    rebuild_context,
)
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Draft, Refs
from clew_workflows.thread.source import make_filter
from clew_workflows.thread.thread import Thread

# Previews: the context of a model call that might follow. Nothing is committed.


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
    policy = budgets.make_call_policy(state.settings, request)
    extended = _commit_pending(state, thread, upto, lane, pending)
    effective = _find_policy(extended, policy)
    try:
        context = build_context(extended, context_ref=lane, policy=policy, model=request.model)
    except ContextOverflow as error:
        context = _make_overflow(error, effective)
    ratio = state.settings.learned.get(request.model, budgets.NOTHING_LEARNED).ratio
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
    profile = state.settings.profiles.get(request.model)
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
    count = load_encoding(state.settings.config.encoding).for_model(state.settings.model)
    refs: Refs = {"run_id": f"run-{state.counters.runs + 1}"}
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


def answer_status(state: State, thread: Thread) -> dict[str, Any]:
    """Answer the query `status`."""
    run = state.run
    return SessionStatus(
        session_id=state.session_id,
        status=_name_status(state),
        active_context_ref=state.context_ref,
        request_id=state.request_id,
        run_id=run.run_id if run else None,
        iteration=run.iteration if run else 0,
        rev=thread.rev,
        projection_cursor_seq=_find_cursor(state, thread),
        pending_context_op=_describe_operation(pending) if (pending := operations.find_pending_op(state)) else None,
        pending_operations=[_describe_operation(waiting) for waiting in state.deferred.operations],
        pending_inputs=len(state.inbox),
        queued_messages=len(state.queue),
        queued_request_ids=[request.request_id for request in state.queue],
        pending_config=sorted(state.deferred.config.model_fields_set) if state.deferred.config else [],
        pending_approvals=[_describe_call(call) for call in outside.list_pending_approvals(state)],
        pending_external_calls=[_describe_external(call) for call in outside.list_pending_results(state)],
        subagents=[_describe_child(child) for child in state.children],
        parent=_describe_parent(state),
        usage=state.spent.own,
        subagent_usage=state.spent.subagents if state.spent.subagents != Usage() else None,
        agent=state.settings.agent and drafts.make_agent_version(state.settings.agent),
        model=state.settings.model,
        config=drafts.dump_configuration(state.settings),
        metadata=state.settings.config.metadata,
        first_live_seq=thread.first_seq,
        closed=state.closed,
    ).as_dict()


def _name_status(state: State) -> str:
    return "hibernated" if state.closed and state.listed.hibernated else state.phase


def build_projection(state: State, thread: Thread, query: ContextQuery) -> Projection:
    """Build the context that the query `context` names.

    Raises:
        Archived: The context needs entries that are in the archive alone.
        ContextOverflow: What the context must have does not fit the policy's budget.
        InvalidInput: There is no such call or lane, or the policy cannot be used.
        InvalidTokenBudget: The policy leaves no budget.
    """
    if query.pending is not None:
        return build_preview(state, thread, query, query.pending)
    if query.call_id is None:
        return build_context(thread, context_ref=query.context_ref, at_seq=query.at_seq, policy=query.context_policy)
    call = state.run.call if state.run else None
    if call and call.call_id == query.call_id:
        return build_context(
            thread,
            context_ref=call.context_ref,
            at_seq=call.at_seq,
            policy=call.context_policy,
            model=call.model,
            output_schema=state.run.request.output_schema if state.run else None,
            tools=state.run.request.tools if state.run else None,
            external_tools=dump_external_tools(state.run.request) if state.run else None,
        )
    reply = thread.find_reply(query.call_id)
    recipe = reply.recipe if reply else None
    if recipe is None and thread.first_seq > 0:
        raise Archived(f"model call {query.call_id!r} may be in the archive: read it through ReadContext")
    if recipe is None:
        raise InvalidInput(f"no model call {query.call_id!r}: calls are named by `call_id` in the entries' refs")
    return rebuild_context(thread, recipe, find_own_settings(thread, recipe))


def dump_external_tools(request: Request) -> list[ToolSpec] | None:
    """Dump the caller's tools of a request; None: it has the session's."""
    return None if request.external_tools is None else [tool.spec for tool in request.external_tools]


def answer_window(state: State, thread: Thread, query: WindowQuery) -> dict[str, Any]:
    """Answer the query `window`: the newest messages of a lane that fit a budget, under the session's policy."""
    page = build_window(thread, query.context_ref or state.context_ref, query.token_budget)
    return {"messages": page.messages, "meta": page.meta.as_dict()}


def answer_transcript(state: State, thread: Thread, query: TranscriptQuery) -> dict[str, Any]:
    """Answer the query `transcript`: a lane's messages, unabridged, each with its seq.

    Raises:
        Archived: The lane's system prompt is to be included, and may be in the archive alone.
    """
    messages = iterate_transcript(
        thread,
        query.context_ref or state.context_ref,
        from_seq=query.from_seq,
        limit=query.limit,
        include_system=query.include_system,
    )
    page = _fill_page("messages", [], map(dict, messages), None)
    return page | _note_archived(thread, query.from_seq)


def answer_entries(thread: Thread, query: EntriesQuery) -> dict[str, Any]:
    """Answer the query `entries`: the entries that meet every filter, in order."""
    matches = make_filter(query)
    rows = (entry.as_dict() for entry in thread.slice(query.from_seq, thread.last_seq) if matches(entry))
    return _fill_page("entries", [], rows, query.limit) | _note_archived(thread, query.from_seq)


def answer_follow(state: State, thread: Thread, query: FollowQuery) -> dict[str, Any]:
    """Answer the query `follow`: the entries from a seq on; after the last one, the status."""
    from_seq = thread.rev if query.from_seq is None else query.from_seq
    page = answer_entries(thread, EntriesQuery(from_seq=from_seq))
    return page if "next_seq" in page else page | {"status": describe_live_status(state, thread).as_dict()}


def describe_live_status(state: State, thread: Thread) -> LiveStatus:
    """Describe what viewers follow of the status."""
    run = state.run
    waiting = outside.list_pending_approvals(state)
    external = outside.list_pending_results(state)
    return LiveStatus(
        rev=thread.rev,
        status=_name_status(state),
        request_id=state.request_id,
        run_id=run.run_id if run else None,
        call_id=run.call.call_id if run and run.call and state.phase in ("awaiting_model", "stopping") else None,
        iteration=run.iteration if run else 0,
        unfinished_request_ids=state.unfinished,
        running_calls=tuple(map(_describe_call, tool_rounds.list_running(state))),
        pending_approvals=tuple(map(_describe_call, waiting)),
        pending_external_calls=tuple(map(_describe_external, external)),
    )


def _fill_page(
    name: str, page: list[dict[str, Any]], rows: Iterable[dict[str, Any]], limit: int | None
) -> dict[str, Any]:
    """Fill a page with rows; `next_seq` is the seq of the first row that did not fit."""
    room = MAX_PAGE_BYTES - len(to_json(page))
    for count, row in enumerate(rows, len(page)):
        room -= len(to_json(row)) + 1
        if (page and room < 0) or (limit is not None and count >= limit):
            return {name: page, "next_seq": row["seq"]}
        page.append(row)
    return {name: page}


def _note_archived(thread: Thread, from_seq: int) -> dict[str, int]:
    """Return the first live seq, if the query began before it."""
    return {"archived_before": thread.first_seq} if from_seq < thread.first_seq else {}


def _describe_call(call: RequestedCall) -> PendingCall:
    return PendingCall(tool_call_id=call.tool_call_id, name=call.name, arguments=call.arguments)


def _describe_external(call: RequestedCall) -> PendingExternalCall:
    return PendingExternalCall(
        tool_call_id=call.tool_call_id,
        name=call.name,
        arguments=call.arguments,
        expires_at=format_timestamp(datetime.fromtimestamp(call.expires_at or 0, UTC)),
    )


def _describe_child(child: Child) -> OpenSubagent:
    steps: dict[str, Literal["starting", "working", "cancelled"]] = {"start": "starting", "working": "working"}
    return OpenSubagent(
        tool_call_id=child.tool_call_id,
        agent=child.agent,
        session_id=child.session_id,
        status=steps.get(child.step, "cancelled"),
    )


def _describe_parent(state: State) -> ParentSession | None:
    if state.assignment is None:
        return None
    task = state.assignment.task
    return ParentSession(session_id=task.session_id, tool_call_id=task.tool_call_id, depth=task.depth)


def _describe_operation(waiting: ContextOperation) -> PendingOperation:
    operation = waiting.operation
    return PendingOperation(
        op_id=waiting.op_id, type=operation.type, reason=operation.reason, context_ref=waiting.context_ref
    )


def _find_cursor(state: State, thread: Thread) -> int:
    """Find the newest seq that the active lane's context includes; -1 for none."""
    lane = thread.get_lane(state.context_ref)
    if lane is None:
        return -1
    newest = [*lane.message_seqs[-1:], lane.layers.seq]
    return max(newest, default=-1)
