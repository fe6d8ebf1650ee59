"""Summaries and compactions: when a lane is summed up, how far, and what becomes of what was written.

A summary stands for a lane under the policies that use summaries; a compaction puts it under the lane as a snapshot.
Either is undone by `expand`: the thread keeps everything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from contextlib import suppress
from dataclasses import replace

from clew.contract import ContextOperation, SummarizeInput
from clew.contract.payloads import AppliedReplace, ErrorPayload, OperationPayload, StoredSnapshot, SummaryPayload
from clew.contract.policy import ContextPolicy
from clew.errors import Archived, Busy, InvalidInput, NothingToSummarize
from clew.thread.entries import Draft, Refs
from clew.thread.lane import Group, Lane
from clew.thread.thread import Thread
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State, Summarizing, remember_operation
from clew_workflows.protocol import Failure, Summarize, Summarized

RUNS_BEFORE_RETRY = 10
"""After a failure the session goes on for so many runs before it tries again by itself."""


def begin(state: State, thread: Thread, command: SummarizeInput) -> Decision:
    """A summary that was asked for is made.

    Raises:
        Busy: a request is running or waits, or a summary is in the making.
        InvalidInput: the range ends before the summary in force does.
        NothingToSummarize: there is nothing between the last summary and what is kept as it is.
    """
    if not state.at_rest:
        raise Busy("the session is at work: wait for it, or cancel what runs")
    lane = command.context_ref or state.context_ref
    effect = _make_effect(state, state.policy, lane)
    # What is in the archive is fetched before the summary is made.
    with suppress(Archived):
        find_bounds(state, thread, effect.model_copy(update={"from_seq": command.from_seq, "to_seq": command.to_seq}))
    return _begin(state, state.policy, lane, from_seq=command.from_seq, to_seq=command.to_seq)


def begin_compaction(state: State, operation: ContextOperation, to_seq: int | None) -> Decision:
    """A compaction whose context the session is to write itself is made."""
    lane = operation.context_ref or state.context_ref
    return _begin(state, state.policy, lane, operation=operation, to_seq=to_seq)


def begin_due(state: State, _at: Moment) -> Decision:
    """After a completed run, and if nothing waits, a lane is summed up whose contexts have become too long."""
    lane, policy = state.summary_due, state.policy
    if lane is None or state.phase != "idle" or state.busy:
        return Decision(state)
    state = replace(state, summary_due=None)
    if not policy.writes_summaries or state.runs < state.no_summary_before:
        return Decision(state)
    return _begin(state, policy, lane, automatic=True)


def _begin(
    state: State,
    policy: ContextPolicy,
    lane: str,
    *,
    operation: ContextOperation | None = None,
    automatic: bool = False,
    from_seq: int | None = None,
    to_seq: int | None = None,
) -> Decision:
    making = Summarizing(f"summary-{state.summaries + 1}", operation, automatic)
    compacts = operation is not None or (automatic and policy.summarization == "compact")
    changes = {"compacts": compacts, "from_seq": from_seq, "to_seq": to_seq}
    effect = _make_effect(state, policy, lane).model_copy(update=changes)
    state = replace(state, phase="summarizing", summarizing=making, summaries=state.summaries + 1)
    return Decision(state, (), effect)


def _make_effect(state: State, policy: ContextPolicy, lane: str) -> Summarize:
    """What is asked of the world for a summary, its range aside."""
    most = max(min(policy.budget // 4, policy.reserve_output_tokens or policy.budget), 1)
    return Summarize(
        summary_id=f"summary-{state.summaries + 1}",
        context_ref=lane,
        model=policy.summarization_model or state.config.model,
        encoding=state.config.encoding,
        max_input_tokens=policy.max_input_tokens,
        max_output_tokens=most,
    )


def find_range(state: State, thread: Thread, effect: Summarize) -> Summarize:
    """What is to be summed up, with the range that it comes to.

    Raises:
        Archived: that cannot be told from what the thread keeps of its past.
        InvalidInput: the range ends before the summary in force does.
        NothingToSummarize: there is nothing between the last summary and what is kept as it is.
    """
    policy, lane = state.policy, _require_lane(thread, effect.context_ref)
    by_itself = state.summarizing is not None and state.summarizing.automatic
    as_it_is = int(policy.budget * policy.low_water) if by_itself else 0
    first, last, builds_on = find_bounds(state, thread, effect, as_it_is)
    # A window that cuts even so would have the session write a summary after every run.
    bounded = policy.summarize_threshold is not None or policy.max_thread_tokens is not None
    if by_itself and not bounded and lane.count_messages(first, last)[1] * 4 < policy.budget:
        raise NothingToSummarize("too little has been said since the last summary")
    pinned = tuple(seq for seq in lane.layers.pinned if seq <= last)
    return effect.model_copy(update={"from_seq": first, "to_seq": last, "builds_on": builds_on, "pinned": pinned})


def find_bounds(state: State, thread: Thread, effect: Summarize, as_it_is: int = 0) -> tuple[int, int, int | None]:
    """The first and the last seq of what is summed up, and the seq of what stands for all before.

    Whole groups are summed up, and what is asked for from further back than the last summary begins where that began.
    Without `to_seq` the last turns stay as they are, and more of them up to so many tokens. A round stays as it is
    while one of its calls may still return, or has returned after the last seq.

    Raises:
        Archived, NothingToSummarize: see `find_range`.
        InvalidInput: `to_seq` is before the end of the summary in force.
    """
    lane, from_seq, to_seq = _require_lane(thread, effect.context_ref), effect.from_seq, effect.to_seq
    top = lane.layers.top
    if to_seq is not None and top.summary >= 0 and to_seq < top.summarized_to:
        raise InvalidInput(
            f"to_seq ({to_seq}) is before {top.summarized_to}, where the summary in force (entry {top.summary}) "
            "ends: name a later to_seq, or take that summary off with expand first"
        )
    again = from_seq is not None and from_seq <= top.summarized_to
    after = top.after if again else top.summarized_to
    builds_on = top.anchor if again or top.summary < 0 else top.summary
    last = _find_end_before_turns(lane, state.policy.keep_last_turns, as_it_is) if to_seq is None else to_seq
    # A summary never gives way to one of less.
    last = max(last, top.summarized_to)
    last = max(last, _find_group_end(lane, last))
    last = _find_end_before_doubt(lane, top.summarized_to, last, {call.tool_call_id for call in state.late_calls})
    newest = max((seq for seq in lane.message_seqs if seq <= last), default=-1)
    newest = max(newest, min(lane.gap.newest_seq, last))
    if newest <= after:
        raise NothingToSummarize(
            f"after {after} the lane has said nothing but its last turns, and rounds whose calls may still return: "
            "name a later to_seq, keep fewer turns, or wait for the calls"
        )
    return after + 1, newest, builds_on if builds_on >= 0 else None


def _find_end_before_turns(lane: Lane, turns: int, tokens: int) -> int:
    """The seq before the turns that stay as they are: the last ones, and more as long as they have few tokens."""
    if not lane.message_seqs:
        return lane.gap.newest_seq
    last, start = lane.message_seqs[-1], lane.message_seqs[-1] + 1
    for number, turn in enumerate(reversed(lane.turn_starts), 1):
        if number > turns and lane.count_messages(turn, last)[1] > tokens:
            break
        start = turn
    else:
        return min(start - 1, lane.gap.newest_seq)
    return start - 1


def _find_end_before_doubt(lane: Lane, after: int, last: int, open_calls: Set[str]) -> int:
    """The last seq before rounds that have a late result after it, or may have: no model would be shown that."""

    def is_separated(group: Group) -> bool:
        is_open = any(entry.refs.get("tool_call_id") in open_calls for entry in group.entries)
        return is_open or any(entry.seq > last for entry in group.late)

    while separated := next(
        (group for group in lane.groups if after < group.start <= last and is_separated(group)), None
    ):
        last = separated.start - 1
    return last


def _require_lane(thread: Thread, context_ref: str) -> Lane:
    lane = thread.get_lane(context_ref)
    if lane is None or not (lane.message_seqs or lane.gap.newest_seq >= 0 or lane.layers.is_compacted):
        raise NothingToSummarize(f"the lane {context_ref!r} has said nothing")
    if not lane.layers.is_complete:
        raise Archived(f"the lane {context_ref!r} is in the archive: read it through ReadThread")
    return lane


def _find_group_end(lane: Lane, seq: int) -> int:
    """The last message up to a seq, with the rest of its group."""
    place = bisect_right(lane.group_starts, seq)
    if not place:
        return min(seq, lane.gap.newest_seq)
    return max(lane.groups[place - 1].entries[-1].seq, min(seq, lane.gap.newest_seq))


def commit_summary(state: State, event: Summarized, _at: Moment) -> Decision:
    """What was written is committed, and the session is idle."""
    effect, answer, making = event.effect, event.summary, state.summarizing
    assert effect.from_seq is not None, "the range is known once it is written"
    assert effect.to_seq is not None, "the range is known once it is written"
    summary = SummaryPayload(
        context_ref=effect.context_ref,
        content=answer.content,
        format="text",
        from_seq=effect.from_seq,
        to_seq=effect.to_seq,
        model=effect.model,
        source_digest=answer.source_digest,
        source_tokens=answer.source_tokens,
        pinned=effect.pinned,
        usage=answer.usage,
    )
    refs: Refs = {"session_id": state.session_id, "summary_id": effect.summary_id}
    state = replace(state, phase="idle", summarizing=None, usage=state.usage.plus(answer.usage))
    if not effect.compacts:
        return Decision(state, (Draft(summary, refs),))
    operation = AppliedReplace(
        type="replace",
        reason="compaction",
        result_context=StoredSnapshot(messages=[summary.make_message("user")], system_prompt=event.system_prompt),
        base_seq=effect.to_seq,
        meta=summary.provenance | {"base_seq": effect.to_seq},
    )
    asked_for = making.operation if making else None
    op_id = asked_for.op_id if asked_for else f"compaction:{effect.summary_id}"
    compaction = OperationPayload(op_id=op_id, context_ref=effect.context_ref, operation=operation)
    return Decision(remember_operation(state, op_id), (Draft(compaction, refs),))


def note_failure(state: State, failure: Failure, _at: Moment) -> Decision:
    """The session goes on without the summary, and the thread says why; that nothing was to be said is no failure."""
    making = state.summarizing
    assert making is not None, "no summary is in the making"
    state = replace(state, phase="idle", summarizing=None)
    if making.automatic:
        if failure.type == NothingToSummarize.type:
            return Decision(state)
        state = replace(state, no_summary_before=state.runs + RUNS_BEFORE_RETRY)
    return Decision(state, (_draft_error(state, making, failure),))


def _draft_error(state: State, making: Summarizing, failure: Failure) -> Draft:
    details = failure.details | ({"op_id": making.operation.op_id} if making.operation else {})
    payload = ErrorPayload(type=failure.type, message=failure.message, details=details)
    return Draft(payload, {"session_id": state.session_id, "summary_id": making.summary_id})


def is_making(state: State, summary_id: str) -> bool:
    """Whether a summary is still in the making."""
    return state.summarizing is not None and state.summarizing.summary_id == summary_id


def give_up(state: State, reason: str) -> Decision:
    """Give up the summary in the making. One of the session's own accord is tried again after a later run."""
    making = state.summarizing
    if making is None:
        return Decision(state)
    failure = Failure(type="cancelled", message=f"the summary was given up: {reason}")
    return Decision(replace(state, phase="idle", summarizing=None), (_draft_error(state, making, failure),))
