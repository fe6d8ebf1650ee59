"""Retention: chooses the archived entries that a thread keeps because contexts still need them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic_core import to_json

from clew_workflows.contract.errors import Archived
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context._lane_view import LaneView
from clew_workflows.thread.context.projection_input import ProjectionInput
from clew_workflows.thread.context.truncation import count_saved, count_smallest
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.lane import ArchivedPart, Group, Layers
from clew_workflows.thread.thread import Retained, Thread, find_last


def retain(
    thread: Thread, first_seq: int, needs: Mapping[str, Sequence[ContextPolicy]], room: int, upto: int | None = None
) -> Retained:
    """Choose what a thread must keep of its entries before `first_seq`, so that contexts stay the same without them.

    `needs`: the lanes to keep, each with the policies of its contexts. A lane that the thread does not hold enough of
    is left out.
    `room`: the most bytes of JSON for the messages of all lanes. If they need more, each lane keeps its newest.
    `upto`: contexts at this seq and later stay the same; None: the newest.
    """
    if first_seq == 0:
        return Retained()
    upto = thread.last_seq if upto is None else upto
    in_force = (find_last(entries, first_seq - 1) for entries in (thread.configs, thread.prompts, thread.activations))
    retained = {entry.seq: entry for entry in in_force if entry}
    gaps: dict[str, ArchivedPart] = {}
    for name, policies in needs.items():
        try:
            views = [LaneView(ProjectionInput(thread, policy, context_ref=name, at_seq=upto)) for policy in policies]
            lane = _retain_lane(views, first_seq, room)
        except Archived:
            continue
        gaps[name] = lane.gap
        retained |= {entry.seq: entry for entry in lane.entries}
        room -= lane.size
    return Retained(upto, tuple(retained[seq] for seq in sorted(retained)), gaps)


@dataclass(frozen=True, slots=True)
class _RetainedLane:
    """What a thread keeps of one lane.

    Attributes:
        gap: The part that it does not keep.
        entries: The entries that it keeps, in any order.
        size: Bytes of JSON of the messages among them.
    """

    gap: ArchivedPart
    entries: list[Entry]
    size: int


def _retain_lane(views: Sequence[LaneView], first_seq: int, room: int) -> _RetainedLane:
    """Choose what to keep of a lane. The views are of this lane, one for each policy."""
    view = views[0]
    lane = view.lane
    low = min(_find_reach(view) for view in views)
    if groups := bisect_right(lane.group_starts, view.upto):
        # The newest group is kept under any policy: the next reply may answer its results.
        low = min(low, lane.group_starts[groups - 1])
    low, size = _raise_to_room(view, low, first_seq, room)
    window = _list_messages(view, low, first_seq)

    user = _choose_user_messages(view, min(low, first_seq), room - size)
    size += _measure(entry for entry in user.entries if entry.seq < low)
    pinned_seqs, pinned = _choose_pinned(view, min(low, first_seq), room - size)
    size += _measure(pinned)
    others = [*user.entries, *_list_layer_entries(view, first_seq), *pinned]
    if any(view.policy.window == "epoch" for view in views):
        # The shared prefix is found by the recipe of the newest reply.
        others += [reply for reply in [find_last(lane.replies, view.upto)] if reply]
    others_by_seq = {entry.seq: entry for entry in others if entry.seq < first_seq}

    window_seqs = {entry.seq for entry in window}
    retained_seqs = window_seqs | others_by_seq.keys()
    older = lane.message_seqs[: bisect_left(lane.message_seqs, low)]
    dropped = (seq for seq in reversed(older) if seq not in retained_seqs)
    newest_dropped = max(lane.gap.newest_seq, next(dropped, -1))
    remaining = [seq for seq in lane.message_seqs if seq <= view.upto and (seq >= low or seq in retained_seqs)]
    after, messages, tokens = _count_dropped(view, view.after, remaining, newest_dropped)
    summarized_to, unsummarized_messages, unsummarized_tokens = _count_dropped(
        view, view.summarized_to, remaining, newest_dropped
    )
    gap = ArchivedPart(
        newest_seq=newest_dropped,
        after=after,
        messages=messages,
        tokens=tokens,
        no_user_after=user.after,
        summarized_to=summarized_to,
        unsummarized_messages=unsummarized_messages,
        unsummarized_tokens=unsummarized_tokens,
        savings=_count_dropped_savings(views, after, remaining),
        unsummarized_savings=_count_dropped_savings(views, summarized_to, remaining),
        pinned=tuple(pinned_seqs),
        dropped_user_seq=user.dropped_seq,
        layers=lane.find_layers(first_seq - 1),
    )
    window = [entry for entry in window if entry.seq not in others_by_seq]
    return _RetainedLane(gap, [*window, *others_by_seq.values()], size)


def _list_layer_entries(view: LaneView, first_seq: int) -> list[Entry]:
    """List the snapshots and summaries before `first_seq` that are in force at `first_seq - 1` or later."""
    lane, thread = view.lane, view.thread
    later = [layers for layers in lane.layer_history if layers.seq >= first_seq]
    seqs = {
        seq
        for layers in (lane.find_layers(first_seq - 1), *later)
        if layers.is_complete
        for seq in _list_layer_seqs(layers)
    }
    entries = []
    for seq in sorted(seq for seq in seqs if seq < first_seq):
        with suppress(Archived):
            entries.append(thread[seq])
    return entries


def _list_layer_seqs(layers: Layers) -> tuple[int, ...]:
    return tuple(seq for seq in (layers.top.anchor, layers.top.summary) if seq >= 0)


def _choose_pinned(view: LaneView, upto: int, room: int) -> tuple[list[int], list[Entry]]:
    """Choose the pinned seqs whose groups fit into `room` bytes, and the entries of those groups before `upto`."""
    lane = view.lane
    chosen: dict[int, Entry] = {}
    seqs = []
    for seq in view.layers.pinned:
        if lane.holds(seq):
            group = lane.find_group(seq)
            members = (*group.entries, *group.late) if group else ()
            entries = [entry for entry in members if entry.seq < upto]
            if _measure(entries) <= room - _measure(chosen.values()):
                chosen |= {entry.seq: entry for entry in entries}
                seqs.append(seq)
    return seqs, list(chosen.values())


def _measure(entries: Iterable[Entry]) -> int:
    """Bytes of JSON of the entries."""
    return sum(len(to_json(entry.as_dict())) for entry in entries)


def _count_dropped(view: LaneView, after: int, remaining: Sequence[int], newest: int) -> tuple[int, int, int]:
    """Count the messages after a seq that are not among the remaining ones.

    Returns:
        `after`, the messages and their tokens. If the thread cannot count them: `newest`, 0 and 0.
    """
    try:
        messages, tokens = view.count_since(after)
    except Archived:
        return newest, 0, 0
    later = [view.thread[seq] for seq in remaining[bisect_right(remaining, after) :]]
    return after, messages - len(later), tokens - sum(entry.lane_tokens for entry in later)


def _count_dropped_savings(
    views: Sequence[LaneView], after: int, remaining: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Count the tokens that truncating tool results saves in the messages after a seq that do not remain.

    Returns:
        For each share that an epoch's policy has: the share and the tokens. Shares that the thread cannot count are
        left out.
    """
    lane, upto, remaining_seqs = views[0].lane, views[0].upto, set(remaining)
    groups = lane.groups[bisect_right(lane.group_starts, after) : bisect_right(lane.group_starts, upto)]
    if groups and any(entry.seq not in remaining_seqs for entry in groups[-1].entries if entry.seq <= upto):
        # Results may still be added to the newest group, so its savings are not final.
        return ()
    # The thread will count what remains of each group that starts there, and late results of the newest group alone.
    remaining_groups = [
        Group(
            [entry for entry in group.entries if entry.seq in remaining_seqs],
            group.late if group is groups[-1] else [],
        )
        for group in groups
        if group.start in remaining_seqs
    ]
    saved: dict[int, int] = {}
    for view in views:
        if view.policy.window == "epoch":
            truncator, rendering = view.truncator, view.rendering
            with suppress(Archived):
                still_counted = sum(count_saved(group, truncator, rendering, upto) for group in remaining_groups)
                saved[truncator.share] = view.count_saved_since(after) - still_counted
    return tuple(sorted(saved.items()))


def _find_reach(view: LaneView) -> int:
    """Find the seq of the oldest message that a context may hold."""
    room = view.policy.budget
    try:
        for block in view.iterate_blocks():
            room -= count_smallest(block, view.policy)
            if room < 0 and block.start is not None:
                return block.start
    except Archived:
        pass
    return view.after + 1


def _raise_to_room(view: LaneView, low: int, first_seq: int, room: int) -> tuple[int, int]:
    """Raise `low` until the lane's messages from it up to `first_seq` fit into `room` bytes.

    It may end inside a group: no context shows a part of a group, but the rest may be fetched later, even if the
    whole group is larger than `room`.

    Returns:
        The seq after the newest message that does not remain, and the bytes of the messages from there on.
    """
    seqs, newest_dropped = view.lane.message_seqs, view.lane.gap.newest_seq
    begin, index = bisect_left(seqs, max(low, newest_dropped + 1)), bisect_left(seqs, first_seq)
    size = 0
    while index > begin:
        message_size = _measure([view.thread[seqs[index - 1]]])
        if size + message_size > room:
            break
        size += message_size
        index -= 1
    return max(seqs[index - 1] if index else -1, newest_dropped) + 1, size


def _list_messages(view: LaneView, low: int, first_seq: int) -> list[Entry]:
    """List the lane's messages from `low` up to `first_seq`, that one excluded."""
    seqs = view.lane.message_seqs
    return [view.thread[seq] for seq in seqs[bisect_left(seqs, low) : bisect_left(seqs, first_seq)]]


@dataclass(frozen=True, slots=True)
class _UserMessages:
    """The user's messages of the newest run that a thread keeps.

    Attributes:
        after: There is no other message of the user between this seq and the first of `entries`.
        entries: The messages.
        dropped_seq: Seq of the newest message that is not kept; -1: all are kept.
    """

    after: int
    entries: list[Entry]
    dropped_seq: int


def _choose_user_messages(view: LaneView, low: int, room: int) -> _UserMessages:
    """Choose the user's messages of the newest run.

    The first and the newest are always kept. Others before `low` are kept up to `room` bytes, the newest first.
    """
    lane, thread = view.lane, view.thread
    runs, turns = (bisect_right(starts, view.upto) for starts in (lane.run_starts, lane.turn_starts))
    if not runs:
        return _UserMessages(view.after, [], lane.gap.dropped_user_seq)
    start = lane.run_starts[runs - 1]
    after = max(start - 1, view.after)
    seqs = lane.turn_starts[bisect_right(lane.turn_starts, after) : turns]
    chosen = {seq: thread[seq] for seq in (start, *seqs[:1], lane.turn_starts[turns - 1])}
    for seq in reversed(seqs):
        if seq in chosen or seq >= low or (room := room - _measure([thread[seq]])) >= 0:
            chosen[seq] = thread[seq]
        else:
            return _UserMessages(after, list(chosen.values()), seq)
    dropped = lane.gap.dropped_user_seq
    return _UserMessages(after, list(chosen.values()), dropped if dropped > after else -1)
