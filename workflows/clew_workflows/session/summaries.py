"""Summaries and compactions: when one is written, which entries it covers, and how it is committed.

1. `begin` (the update `summarize`), `begin_compaction` (a `replace` without a context) or `begin_due` (an automatic
   summary) starts it: the state's `summarizing` is set, and the effect is a `Summarize` without a range.
2. `find_range` determines the range once the archived part of the lane is there, and an activity writes the text.
3. `commit_summary` commits it, `note_failure` commits why there is none, and `give_up` cancels it.

A summary replaces older messages in contexts whose policy uses summaries. A compaction is a summary that replaces the
lane's context as a snapshot. Either can be undone by `expand`, because the thread keeps all entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from clew_workflows.contract import ContextOperation, SummarizeInput
from clew_workflows.contract.errors import Archived, Busy, InvalidInput, NothingToSummarize
from clew_workflows.contract.payloads import (
    AppliedReplace,
    ConfigPayload,
    ErrorPayload,
    OperationPayload,
    StoredMessage,
    StoredSnapshot,
    SummaryPayload,
)
from clew_workflows.protocol import Failure, Summarize, Summarized
from clew_workflows.session import budgets
from clew_workflows.session.state import Decision, Moment, State, Summarizing
from clew_workflows.thread.context.blocks import make_archived_error
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput
from clew_workflows.thread.entries import Draft, Refs
from clew_workflows.thread.lane import Group, Lane
from clew_workflows.thread.thread import Thread

RUNS_BEFORE_RETRY = 10
"""Runs after a failed automatic summary before another one is tried."""
RUNS_BEFORE_LOSS = 20
"""Runs for which a call holds summaries back that may never return: nothing waits for it."""


def begin(state: State, thread: Thread, command: SummarizeInput) -> Decision:
    """Start a summary that a caller asks for.

    Raises:
        Busy: A run is active, a request waits, or a summary is being written.
        InvalidInput: `to_seq` is before the end of the summary in force.
        NothingToSummarize: There is no message between the last summary and the turns that stay as they are.
    """
    if not state.at_rest:
        raise Busy("the session is busy: wait for it, or cancel the run")
    lane = command.context_ref or state.context_ref
    check_range(state, thread, lane, command.from_seq, command.to_seq)
    return _begin(state, lane, from_seq=command.from_seq, to_seq=command.to_seq)


def check_range(state: State, thread: Thread, lane: str, from_seq: int | None, to_seq: int | None) -> None:
    """Check that there is something to summarize.

    If the range cannot be determined without the archive, `find_range` determines it when that has been read.

    Raises:
        InvalidInput: `to_seq` is before the end of the summary in force.
        NothingToSummarize: There is no message between the last summary and the turns that stay as they are.
    """
    effect = _make_effect(state, lane).model_copy(update={"from_seq": from_seq, "to_seq": to_seq})
    with suppress(Archived):
        find_bounds(state, thread, effect)


def begin_compaction(state: State, operation: ContextOperation, to_seq: int | None) -> Decision:
    """Start the summary of a `replace` operation that brings no context."""
    assert operation.context_ref is not None, "an accepted operation names its lane"
    lane = operation.context_ref
    return _begin(state, lane, operation=operation, to_seq=to_seq)


def begin_due(state: State, _at: Moment, refs: Refs) -> Decision:
    """Start the automatic summary that is due, if the session is idle. `refs`: those of the run that it follows."""
    lane, policy = state.summaries.due, state.settings.policy
    if lane is None or state.phase != "idle" or state.busy:
        return Decision(state)
    state = replace(state, summaries=replace(state.summaries, due=None))
    if not policy.writes_summaries or state.counters.runs < state.summaries.not_before:
        return Decision(state)
    return _begin(state, lane, refs=refs)


def _begin(
    state: State,
    lane: str,
    *,
    operation: ContextOperation | None = None,
    refs: Refs | None = None,
    from_seq: int | None = None,
    to_seq: int | None = None,
) -> Decision:
    effect = _make_effect(state, lane)
    making = Summarizing(effect.summary_id, operation, refs)
    compacts = operation is not None or (making.automatic and state.settings.policy.summarization == "compact")
    effect = effect.model_copy(update={"compacts": compacts, "from_seq": from_seq, "to_seq": to_seq})
    counters = replace(state.counters, summaries=state.counters.summaries + 1)
    summaries = replace(state.summaries, writing=making)
    return Decision(replace(state, phase="summarizing", summaries=summaries, counters=counters), (), effect)


def _make_effect(state: State, lane: str) -> Summarize:
    """Make the effect of a summary, without its range."""
    policy = budgets.find_policy(state.settings)
    max_output_tokens = max(min(policy.budget // 4, policy.reserve_output_tokens or policy.budget), 1)
    model = policy.summarization_model or state.settings.model
    learned = state.settings.learned.get(model, budgets.NOTHING_LEARNED)
    return Summarize(
        summary_id=f"summary-{state.counters.summaries + 1}",
        context_ref=lane,
        model=model,
        encoding=state.settings.config.encoding,
        max_input_tokens=policy.max_input_tokens,
        max_output_tokens=max_output_tokens,
        learned_budget=learned.budget,
        token_ratio=learned.ratio if learned.ratio > 1 else None,
    )


def find_range(state: State, thread: Thread, effect: Summarize) -> Summarize:
    """Determine the range of a summary; the answer is the effect with it.

    Raises:
        Archived: The range depends on entries that are in the archive alone.
        InvalidInput: `to_seq` is before the end of the summary in force.
        NothingToSummarize: There is no message between the last summary and the turns that stay as they are, or too
            few for an automatic summary, or it would end in the archive.
    """
    policy, lane = budgets.find_policy(state.settings), _require_lane(thread, effect.context_ref)
    automatic = state.summaries.writing is not None and state.summaries.writing.automatic
    keep_tokens = int(policy.budget * policy.low_water) if automatic else 0
    first, last, builds_on = find_bounds(state, thread, effect, keep_tokens)
    # Without a threshold in the policy, a window that drops messages would cause a summary after every run.
    bounded = policy.summarize_threshold is not None or policy.max_thread_tokens is not None
    if automatic and not bounded:
        if last < lane.gap.newest_seq:
            # How much such a summary would cover is known to the archive alone.
            raise NothingToSummarize("a call of a round in the archive may still return")
        view = _view_lane(state, thread, effect)
        covered = view.count_since(first - 1)[1] - view.count_since(last)[1]
        if covered < _count_worthwhile(policy.budget):
            raise NothingToSummarize("too few messages since the last summary")
    pinned = tuple(seq for seq in lane.layers.pinned if seq <= last)
    left_out = (*lane.layers.withdrawn, *((begin, end) for begin, end, _ in lane.layers.corrected))
    withdrawn = tuple(pair for pair in left_out if pair[0] <= last and pair[1] >= first)
    changes = {"from_seq": first, "to_seq": last, "builds_on": builds_on, "pinned": pinned, "withdrawn": withdrawn}
    return effect.model_copy(update=changes)


def find_bounds(state: State, thread: Thread, effect: Summarize, keep_tokens: int = 0) -> tuple[int, int, int | None]:
    """Find the first and the last seq of a summary, and the seq of the entry that stands for all before, if any.

    A summary covers complete groups. One that is to begin within the range of the last summary begins where that
    began. Without `to_seq`, the policy's last turns stay as they are, and older turns that have up to `keep_tokens`
    tokens, as far as a context has room for them beside the summary: messages that contexts drop are summarized.
    A summary ends before a round of which a call may still return, or has returned after the last seq.

    Raises:
        Archived: The range depends on entries that are in the archive alone.
        InvalidInput: `to_seq` is before the end of the summary in force.
        NothingToSummarize: There is no message between the last summary and the turns that stay as they are.
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
    last = to_seq
    if last is None:
        last = _find_end_before_turns(
            _view_lane(state, thread, effect), keep_tokens, _find_room(state, thread, effect)
        )
    # A new summary covers at least the range of the last one.
    last = max(last, top.summarized_to)
    last = max(last, _find_group_end(lane, last))
    last = _find_end_before_doubt(state, lane, effect.context_ref, top.summarized_to, last)
    newest = max((seq for seq in lane.message_seqs if seq <= last), default=-1)
    if lane.gap.layers is None and newest < lane.gap.newest_seq:
        # Nothing of the lane is known: the gap may have no message at all.
        raise make_archived_error(lane)
    newest = max(newest, min(lane.gap.newest_seq, last))
    if newest <= after:
        raise NothingToSummarize(
            f"the lane has only its last turns after entry {after}, and rounds whose calls may still return: "
            "name a later to_seq, keep fewer turns, or wait for the calls"
        )
    return after + 1, newest, builds_on if builds_on >= 0 else None


def _view_lane(state: State, thread: Thread, effect: Summarize) -> LaneView:
    """View the lane as the next context does."""
    return LaneView(ProjectionInput(thread, budgets.find_policy(state.settings), context_ref=effect.context_ref))


def _find_room(state: State, thread: Thread, effect: Summarize) -> int:
    """Find the most tokens of the messages that a summary leaves.

    The budget also has to hold tool schemas, system prompt, the longest summary, and a quarter for what comes next.
    """
    config = thread.find_config(thread.last_seq)
    fixed = config.read(ConfigPayload).tokens if config else None
    taken = fixed.tools + fixed.system_prompt if fixed else 0
    budget = budgets.find_policy(state.settings).budget
    return budget - _count_worthwhile(budget) - taken - effect.max_output_tokens


def _count_worthwhile(budget: int) -> int:
    """Count the tokens of messages that an automatic summary is worth its model call for: a quarter of the budget."""
    return budget // 4


def _find_end_before_turns(view: LaneView, keep_tokens: int, room: int) -> int:
    """Find the seq before the turns that stay as they are, or the one where contexts begin if all stay.

    A turn is measured as contexts show it and all that came after it. Of a newest turn that does not fit into the
    room the newest blocks stay that do.

    Raises:
        Archived: The next older turn is in the archive alone.
    """
    lane, policy = view.lane, view.policy
    oldest = max(view.after, lane.gap.newest_seq)
    turns = [turn for turn in lane.turn_starts if oldest < turn <= view.upto]
    start = first_fitting = view.upto + 1
    number = tokens = 0

    def stays(number: int) -> bool:
        return tokens <= room and (number <= policy.keep_last_turns or tokens <= keep_tokens)

    def find_end(number: int) -> int:
        return (first_fitting if number == 1 <= policy.keep_last_turns else start) - 1

    sizes = _measure_blocks(view)
    while (size := next(sizes, None)) or turns:
        while turns and (size is None or turns[-1] > size[0]):
            number += 1
            if not stays(number):
                return find_end(number)
            start = turns.pop()
        if size:
            tokens = size[1]
            first_fitting = size[0] if tokens <= room else first_fitting
    if oldest == view.after:
        return view.after
    # The next older turn begins in the gap. It is larger than all that came after it.
    if stays(number + 1):
        raise make_archived_error(lane)
    return find_end(number + 1)


def _measure_blocks(view: LaneView) -> Iterator[tuple[int, int]]:
    """Iterate over the starts of the blocks that the thread holds, the newest first, and the tokens from each on."""
    tokens = 0
    with suppress(Archived):
        for block, _, measured in view.iterate_measured_blocks():
            if block.start is None:
                return
            tokens += view.truncator.truncate_to_share(block).tokens
            yield block.start, measured if view.policy.window == "epoch" else tokens


def _find_end_before_doubt(state: State, lane: Lane, context_ref: str, after: int, last: int) -> int:
    """Find the seq before rounds whose late result is after `last`, or still open: no context would include it."""
    awaited = {call.tool_call_id for call in state.late_calls}
    newest_lost = state.counters.runs - RUNS_BEFORE_LOSS
    detached = (
        call.round_seq
        for call in state.detached_calls
        if call.doubt.context_ref == context_ref and call.run_number > newest_lost
    )
    last = min((seq - 1 for seq in detached if after < seq <= last), default=last)

    def is_separated(group: Group) -> bool:
        is_open = any(entry.refs.get("tool_call_id") in awaited for entry in group.entries)
        return is_open or any(entry.seq > last for entry in group.late)

    while separated := next(
        (group for group in lane.groups if after < group.start <= last and is_separated(group)), None
    ):
        last = separated.start - 1
    return last


def _require_lane(thread: Thread, context_ref: str) -> Lane:
    lane = thread.get_lane(context_ref)
    if lane is None or not (lane.message_seqs or lane.gap.newest_seq >= 0 or lane.layers.is_compacted):
        raise NothingToSummarize(f"the lane {context_ref!r} has no messages")
    if not lane.layers.is_complete:
        raise Archived(f"the lane {context_ref!r} is in the archive: read it through ReadThread")
    return lane


def _find_group_end(lane: Lane, seq: int) -> int:
    """Find the end of the group that holds the last message up to a seq."""
    index, archived_end = bisect_right(lane.group_starts, seq), lane.gap.newest_seq
    end = max(lane.groups[index - 1].entries[-1].seq if index else -1, min(seq, archived_end))
    if end != archived_end or archived_end < 0:
        return end
    # The archived part may end inside a group: the group's other results come right after it.
    next_start = bisect_right(lane.group_starts, archived_end)
    upto = lane.group_starts[next_start] if next_start < len(lane.group_starts) else None
    seqs = lane.message_seqs[bisect_right(lane.message_seqs, archived_end) :]
    return max((other for other in seqs if upto is None or other < upto), default=end)


def commit_summary(state: State, event: Summarized) -> Decision:
    """Commit a summary; the session is idle then."""
    effect, answer, making = event.effect, event.summary, state.summaries.writing
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
        recipe=answer.recipe,
    )
    refs: Refs = {**((making.refs if making else None) or {}), "summary_id": effect.summary_id}
    operation = making.operation if making else None
    state = replace(
        state,
        phase="idle",
        summaries=replace(state.summaries, writing=None),
        spent=state.spent.add(answer.usage),
    )
    if not effect.compacts:
        return Decision(state, (Draft(summary, refs, answer.tokens),))
    applied = AppliedReplace(
        type="replace",
        reason="compaction",
        result_context=StoredSnapshot(
            messages=[StoredMessage(role="user", content=summary.make_message("user")["content"])],
            system_prompt=event.system_prompt,
            tokens=None if answer.tokens is None else [answer.tokens],
            system_prompt_tokens=event.system_prompt_tokens,
        ),
        base_seq=effect.to_seq,
        recipe=answer.recipe,
        meta=((operation.operation.meta if operation else None) or {})
        | summary.provenance
        | {"base_seq": effect.to_seq},
    )
    op_id = operation.op_id if operation else f"compaction:{effect.summary_id}"
    compaction = OperationPayload(op_id=op_id, context_ref=effect.context_ref, operation=applied)
    return Decision(
        replace(state, memory=state.memory.add_operation(op_id)), (Draft(compaction, refs, answer.tokens),)
    )


def note_failure(state: State, failure: Failure) -> Decision:
    """Commit why there is no summary; the session is idle then.

    That there is too little for an automatic summary is not committed.
    """
    making = state.summaries.writing
    assert making is not None, "no summary is being written"
    state = replace(state, phase="idle", summaries=replace(state.summaries, writing=None))
    if making.automatic:
        if failure.type == NothingToSummarize.type:
            return Decision(state)
        state = replace(state, summaries=replace(state.summaries, not_before=state.counters.runs + RUNS_BEFORE_RETRY))
    return Decision(state, (_draft_error(making, failure),))


def _draft_error(making: Summarizing, failure: Failure) -> Draft:
    details = failure.details | ({"op_id": making.operation.op_id} if making.operation else {})
    payload = ErrorPayload(type=failure.type, message=failure.message, details=details)
    refs: Refs = {**(making.refs or {}), "summary_id": making.summary_id}
    return Draft(payload, refs)


def is_making(state: State, summary_id: str) -> bool:
    """Whether a summary is still being written."""
    return state.summaries.writing is not None and state.summaries.writing.summary_id == summary_id


def give_up(state: State, reason: str) -> Decision:
    """Give up the summary that is being written. An automatic one is tried again after a later run."""
    making = state.summaries.writing
    if making is None:
        return Decision(state)
    failure = Failure(type="cancelled", message=f"the summary was given up: {reason}")
    return Decision(
        replace(state, phase="idle", summaries=replace(state.summaries, writing=None)),
        (_draft_error(making, failure),),
    )
