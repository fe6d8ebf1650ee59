"""Parting with the past: what a thread keeps of its entries when the older ones live in an archive alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic_core import to_json

from clew.context._lane_view import LaneView
from clew.context.projection_input import ProjectionInput
from clew.context.truncation import count_saved, count_smallest
from clew.contract.policy import ContextPolicy
from clew.errors import Archived
from clew.thread.entries import Entry
from clew.thread.lane import Gap, Lane
from clew.thread.layers import Layers
from clew.thread.thread import Retained, Thread, find_last


def retain(
    thread: Thread, first_seq: int, needs: Mapping[str, Sequence[ContextPolicy]], room: int, upto: int | None = None
) -> Retained:
    """What a thread must keep, once its entries before `first_seq` are gone, to go on answering as it does now.

    That is for contexts at the seq `upto` (the newest unless given) and later. `needs` names the lanes to keep and
    the policies that their contexts are made under. What those can reach is kept, as far as the lanes' messages have
    at most `room` bytes of JSON together, the newest first.
    """
    if first_seq == 0:
        return Retained()
    upto = thread.last_seq if upto is None else upto
    marks = (find_last(some, first_seq - 1) for some in (thread.configs, thread.prompts, thread.switches))
    kept = {entry.seq: entry for entry in marks if entry}
    gaps: dict[str, Gap] = {}
    for name, policies in needs.items():
        try:
            views = [LaneView(ProjectionInput(thread, policy, context_ref=name, at_seq=upto)) for policy in policies]
            part = _part(views, first_seq, room)
        except Archived:
            continue
        gaps[name] = part.gap
        kept |= {entry.seq: entry for entry in part.kept}
        room -= part.size
    return Retained(upto, tuple(kept[seq] for seq in sorted(kept)), gaps)


@dataclass(frozen=True, slots=True)
class _Part:
    gap: Gap
    kept: list[Entry]
    size: int


def _part(views: Sequence[LaneView], first_seq: int, room: int) -> _Part:
    view = views[0]
    lane = view.lane
    low = min(_reach(view) for view in views)
    if groups := bisect_right(lane.group_starts, view.upto):
        # What the next reply answers is kept whatever the policy leaves out.
        low = min(low, lane.group_starts[groups - 1])
    low, size = _within(lane, low, first_seq, room)
    window = _messages(view, low, first_seq)

    before, asked, unheard = _asked(view, min(low, first_seq), room - size)
    size += _weight(entry for entry in asked if entry.seq < low)
    marks = _marks(view, first_seq)
    if any(view.policy.window == "epoch" for view in views):
        marks += [reply for reply in [find_last(lane.replies, view.upto)] if reply]
    held, pinned = _pinned(view, min(low, first_seq), room - size)
    size += _weight(pinned)
    special = {entry.seq: entry for entry in (*asked, *marks, *pinned) if entry.seq < first_seq}
    present = {entry.seq for entry in window} | special.keys()
    older = lane.message_seqs[: bisect_left(lane.message_seqs, low)]
    missing = (seq for seq in reversed(older) if seq not in present)
    newest = max(lane.gap.newest_seq, next(missing, -1))
    stays = [seq for seq in lane.message_seqs if seq <= view.upto and (seq >= low or seq in present)]
    mark, messages, tokens = _counted(view, view.after, stays, newest)
    summed, summed_messages, summed_tokens = _counted(view, view.summarized_to, stays, newest)
    gap = Gap(
        newest, mark, messages, tokens, before, summed, summed_messages, summed_tokens,
        dropped_user_seq=unheard,
        savings=_saved(views, mark, stays),
        unsummarized_savings=_saved(views, summed, stays),
        pinned=tuple(held),
        layers=lane.find_layers(first_seq - 1),
    )  # fmt: skip
    return _Part(gap, [*(entry for entry in window if entry.seq not in special), *special.values()], size)


def _marks(view: LaneView, first_seq: int) -> list[Entry]:
    """The snapshots and summaries that are in force somewhere from the entry before `first_seq` on."""
    lane, thread = view.lane, view.thread
    later = [layers for layers in lane.layer_history if layers.seq >= first_seq]
    seqs = {
        seq
        for layers in (lane.find_layers(first_seq - 1), *later)
        if layers.is_complete
        for seq in _stands_on(layers)
    }
    marks = []
    for seq in sorted(seq for seq in seqs if seq < first_seq):
        with suppress(Archived):
            marks.append(thread[seq])
    return marks


def _stands_on(layers: Layers) -> tuple[int, ...]:
    return tuple(seq for seq in (layers.top.anchor, layers.top.summary) if seq >= 0)


def _pinned(view: LaneView, upto: int, room: int) -> tuple[list[int], list[Entry]]:
    """The seqs of what is pinned and kept, and the entries of their groups before a seq, as far as they have room."""
    lane = view.lane
    kept: dict[int, Entry] = {}
    seqs = []
    for seq in view.layers.pinned:
        if lane.holds(seq):
            group = lane.find_group(seq)
            members = (*group.entries, *group.late) if group else ()
            entries = [entry for entry in members if entry.seq < upto]
            if _weight(entries) <= room - _weight(kept.values()):
                kept |= {entry.seq: entry for entry in entries}
                seqs.append(seq)
    return seqs, list(kept.values())


def _weight(entries: Iterable[Entry]) -> int:
    return sum(len(to_json(entry.as_json())) for entry in entries)


def _counted(view: LaneView, mark: int, stays: Sequence[int], newest: int) -> tuple[int, int, int]:
    """How much goes of what the lane has said after a mark, as messages and tokens; the mark moves where unknown."""
    try:
        messages, tokens = view.count_since(mark)
    except Archived:
        return newest, 0, 0
    later = [view.thread[seq] for seq in stays[bisect_right(stays, mark) :]]
    return mark, messages - len(later), tokens - sum(entry.lane_tokens for entry in later)


def _saved(views: Sequence[LaneView], mark: int, stays: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """What cutting tool results to their share saves of what goes, for each share that epochs are measured by."""
    lane, upto, kept = views[0].lane, views[0].upto, set(stays)
    groups = lane.groups[bisect_right(lane.group_starts, mark) : bisect_right(lane.group_starts, upto)]
    if groups and groups[-1].start not in kept:
        # More results may come of a group that goes.
        return ()
    saved: dict[int, int] = {}
    for view in views:
        if view.policy.window == "epoch":
            cutter, rendering = view.cutter, view.rendering
            with suppress(Archived):
                here = sum(count_saved(group, cutter, rendering, upto) for group in groups if group.start in kept)
                saved[cutter.share] = view.count_saved_since(mark) - here
    return tuple(sorted(saved.items()))


def _reach(view: LaneView) -> int:
    """The seq of the oldest message that a context may be made of."""
    left = view.policy.budget
    try:
        for block in view.iterate_blocks():
            left -= count_smallest(block, view.policy)
            if left < 0 and block.start is not None:
                return block.start
    except Archived:
        pass
    return view.after + 1


def _within(lane: Lane, low: int, first_seq: int, room: int) -> tuple[int, int]:
    """The lowest seq from which on the lane's messages before `first_seq` have room, and their size.

    It comes right after the newest message that goes.
    """
    size, reached = 0, first_seq
    for group in reversed(lane.groups[: bisect_left(lane.group_starts, first_seq)]):
        # Of a group that began before, a result may be left that no context shows; but it is counted.
        kept = [entry for entry in group.entries if low <= entry.seq < first_seq]
        if not kept or size + _weight(kept) > room:
            break
        size, reached = size + _weight(kept), kept[0].seq
    goes = lane.groups[: bisect_left(lane.group_starts, reached)]
    last = max((entry.seq for entry in goes[-1].entries if entry.seq < reached), default=-1) if goes else -1
    return max(last, lane.gap.newest_seq) + 1, size


def _messages(view: LaneView, low: int, first_seq: int) -> list[Entry]:
    seqs = view.lane.message_seqs
    return [view.thread[seq] for seq in seqs[bisect_left(seqs, low) : bisect_left(seqs, first_seq)]]


def _asked(view: LaneView, low: int, room: int) -> tuple[int, list[Entry], int]:
    """What the user of the newest run has said in it, and the seq after which the first of that is looked for.

    The first and the newest message are kept in any case, others from before `low` as far as they have room, the
    newest first. Last comes the seq of the newest one that has none; -1: all have.
    """
    lane, thread = view.lane, view.thread
    runs, turns = (bisect_right(starts, view.upto) for starts in (lane.run_starts, lane.turn_starts))
    if not runs:
        return view.after, [], lane.gap.dropped_user_seq
    start = lane.run_starts[runs - 1]
    before = max(start - 1, view.after)
    said = lane.turn_starts[bisect_right(lane.turn_starts, before) : turns]
    kept = {seq: thread[seq] for seq in (start, *said[:1], lane.turn_starts[turns - 1])}
    for seq in reversed(said):
        if seq in kept or seq >= low or (room := room - _weight([thread[seq]])) >= 0:
            kept[seq] = thread[seq]
        else:
            return before, list(kept.values()), seq
    return before, list(kept.values()), lane.gap.dropped_user_seq if lane.gap.dropped_user_seq > before else -1
