"""Threads whose older part is in an archive: what a thread keeps of it, and what a reader loads of it.

`retain` chooses the archived entries that a thread keeps because contexts still need them. `load_lane` and
`load_thread` read the part of an archived thread that a context needs, the newest entry first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic_core import to_json

from clew_workflows.contract.errors import Archived
from clew_workflows.contract.payloads import (
    AppliedReplace,
    ConfigPayload,
    MessagePayload,
    OperationPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.blocks import (
    Rendering,
    Truncator,
    compute_results_share,
    count_saved,
    count_smallest,
)
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput, choose_estimator, list_block_kinds
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.lane import ArchivedPart, Group, Layers, find_base_seq, is_base
from clew_workflows.thread.source import BackwardReader
from clew_workflows.thread.thread import Retained, Thread, find_last

# Retention.


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


# Loading.


GROUP_ENTRIES = 50
"""Entries of the thread after a tool call in which its results are looked for first; then four times as many."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """The part of a lane that was read.

    Attributes:
        entries: The entries that contexts need, in order.
        gap: The messages before and between them.
    """

    entries: tuple[Entry, ...]
    gap: ArchivedPart


async def load_lane(
    reader: BackwardReader, context_ref: str, policies: Sequence[ContextPolicy], layers: Layers | None = None
) -> LanePart:
    """Read the part of a lane that contexts under the policies can hold.

    `layers`: the caller's layers, when it knows operations that the archive does not have yet.
    """
    layers = await _read_layers(reader, context_ref) if layers is None else replace(layers, seq=-1)
    layer_entries, pinned = await asyncio.gather(
        _read_layer_entries(reader, context_ref, layers), _read_pinned(reader, context_ref, layers)
    )
    top = layers.top
    after = top.summarized_to if all(policy.uses_summary for policy in policies) else top.after
    pinned_seqs = {entry.seq for entry in pinned}
    truncators = [Truncator(compute_results_share(policy)) for policy in policies if policy.window == "epoch"]
    reach, counter = _Reach(policies), _GapCounter(layers, after, truncators)
    messages: list[Entry] = []
    async for entry in reader.read("ai_message", context_ref=context_ref, from_seq=after + 1):
        if layers.withdraws(entry.seq) and isinstance(entry.body, UserMessage):
            continue
        if not reach.is_exceeded:
            messages.append(entry)
            reach.add(entry)
        elif not truncators:
            counter.stop_at(entry)
            break
        elif entry.seq not in pinned_seqs:
            # The beginning of an epoch's window depends on the size of the whole lane.
            counter.add(entry)
    loaded = {entry.seq: entry for entry in (*layer_entries, *pinned, *messages)}
    return LanePart(tuple(loaded[seq] for seq in sorted(loaded)), counter.make_gap())


async def load_thread(
    reader: BackwardReader,
    context_ref: str | None = None,
    choose_policy: Callable[[ContextPolicy], ContextPolicy] = lambda policy: policy,
) -> Thread:
    """Read the part of a thread that the context of a lane needs at the newest entry.

    `context_ref`: the lane; None: the active one.
    `choose_policy`: makes the context's policy from the one in force.
    """
    configs, activation = await asyncio.gather(
        _read_configs(reader.read("config")),
        _find_newest_activation(reader.read("ai_context_operation")),
    )
    config = configs[0] if configs else None
    lane = context_ref or (activation.read(OperationPayload).context_ref if activation else DEFAULT_LANE)
    policy = choose_policy(config.read(ConfigPayload).policy if config else ContextPolicy())
    part = await load_lane(reader, lane, [policy])
    in_force = (entry for entry in (*configs, activation) if entry)
    return make_archived_thread(reader.upto, (*in_force, *part.entries), {lane: part.gap})


def make_archived_thread(upto: int, entries: Iterable[Entry], gaps: Mapping[str, ArchivedPart]) -> Thread:
    """Make a thread that is archived up to its newest entry, with the entries that were read."""
    by_seq = {entry.seq: entry for entry in entries}
    return Thread((), upto + 1, Retained(upto, tuple(by_seq[seq] for seq in sorted(by_seq)), gaps))


async def _read_layers(reader: BackwardReader, context_ref: str) -> Layers:
    """Read a lane's layers: all operations and summaries from its last snapshot that was not a compaction.

    If messages from before the snapshot follow it, also the operations since those, which may have withdrawn some.
    """
    operations: list[Entry] = []
    base, after = 0, -1
    async for entry in reader.read("ai_context_operation", context_ref=context_ref):
        if entry.seq <= after:
            break
        operations.append(entry)
        operation = entry.read(OperationPayload).operation
        if base == 0 and isinstance(operation, AppliedReplace) and is_base(entry):
            base, after = entry.seq, find_base_seq(entry, operation)
            if after == base:
                break
    summaries = [entry async for entry in reader.read("summary", context_ref=context_ref, from_seq=base)]
    layers = Layers()
    for entry in sorted((*operations, *summaries), key=lambda entry: entry.seq):
        layers = layers.apply(entry)
    return layers


async def _read_layer_entries(reader: BackwardReader, context_ref: str, layers: Layers) -> list[Entry]:
    """Read the snapshot and the summary in force, those that the reader has."""
    top = layers.top
    kinds_and_seqs = (("ai_context_operation", top.anchor), ("summary", top.summary))
    return [
        entry
        for kind, seq in kinds_and_seqs
        if 0 <= seq <= reader.upto
        async for entry in reader.read(kind, context_ref=context_ref, from_seq=seq, to_seq=seq)
    ]


async def _read_pinned(reader: BackwardReader, context_ref: str, layers: Layers) -> list[Entry]:
    """Read the groups of the pinned entries."""
    pinned: dict[int, Entry] = {}
    for seq in layers.pinned:
        if seq not in pinned:
            group = await _read_group(reader, context_ref, seq)
            late = await _read_late_results(reader, context_ref, group)
            pinned |= {entry.seq: entry for entry in (*group, *late)}
    return list(pinned.values())


async def _read_late_results(reader: BackwardReader, context_ref: str, group: Sequence[Entry]) -> list[Entry]:
    """Read the late results that replace the results in doubt of a group. They may be anywhere after it."""
    payloads = [entry.body for entry in group]
    in_doubt = {payload.tool_call_id for payload in payloads if isinstance(payload, ToolMessage) and payload.in_doubt}
    if not in_doubt:
        return []
    later = reader.read("ai_message", context_ref=context_ref, from_seq=group[-1].seq + 1)
    return [
        entry
        async for entry in later
        if isinstance(payload := entry.body, ToolMessage) and payload.late and payload.tool_call_id in in_doubt
    ]


async def _read_group(reader: BackwardReader, context_ref: str, seq: int) -> list[Entry]:
    """Read the group that holds the message at a seq, the newest entry first; no entries if there is no message."""
    start = await _find_group_start(reader, context_ref, seq)
    if start is None:
        return []
    # A group's entries are consecutive in the lane. Entries of other lanes may lie between them.
    width = GROUP_ENTRIES
    while True:
        upto = start + width
        is_complete = upto >= reader.upto
        group: list[Entry] = []
        async for entry in reader.read("ai_message", context_ref=context_ref, from_seq=start, to_seq=upto):
            if entry.seq > start and not isinstance(entry.body, ToolMessage):
                # The next group begins here: this one, which is read after it, ends before.
                group, is_complete = [], True
            else:
                group.append(entry)
        if is_complete:
            return group
        width *= 4


async def _find_group_start(reader: BackwardReader, context_ref: str, seq: int) -> int | None:
    """Find the seq at which the group of the message at a seq begins; None: the lane has no message there."""
    start: int | None = None
    async for entry in reader.read("ai_message", context_ref=context_ref, to_seq=seq):
        if entry.seq != seq and start is None:
            return None
        start = entry.seq
        if not isinstance(entry.body, ToolMessage):
            break
    return start


async def _read_configs(entries: AsyncIterator[Entry]) -> list[Entry]:
    """Read the configuration in force and those right before it with the same system prompt, the newest first.

    The last of them put the prompt in force.
    """
    configs: list[Entry] = []
    async for entry in entries:
        if configs and entry.read(ConfigPayload).prompt != configs[0].read(ConfigPayload).prompt:
            break
        configs.append(entry)
    return configs


async def _find_newest_activation(entries: AsyncIterator[Entry]) -> Entry | None:
    """Find the newest operation that made a lane the active one."""
    async for entry in entries:
        if entry.read(OperationPayload).activated_lane is not None:
            return entry
    return None


class _GroupBuilder:
    """Puts a lane's messages, read newest first, into groups."""

    def __init__(self) -> None:
        self._results: dict[str, Entry] = {}

    def add(self, entry: Entry) -> Group | None:
        """Add a message, and return the group that it completes. A result without its call is in no group."""
        payload = entry.read(MessagePayload)
        if isinstance(payload, ToolMessage):
            self._results[payload.tool_call_id] = entry
            return None
        answers = (self._results.get(call_id) for call_id in set(payload.call_ids))
        results = sorted((answer for answer in answers if answer), key=lambda answer: answer.seq)
        self._results.clear()
        return Group([entry, *results])


class _GapCounter:
    """Counts the messages of a lane that are read and not kept, newest first."""

    def __init__(self, layers: Layers, after: int, truncators: Sequence[Truncator]) -> None:
        self._layers, self._truncators, self._groups = layers, truncators, _GroupBuilder()
        # The messages up to `after` are not read, and a later snapshot may need them: the gap begins there.
        self._newest_seq = self._after = after
        self._summarized_to = layers.top.summarized_to
        self._messages = self._tokens = self._unsummarized_messages = self._unsummarized_tokens = 0
        self._savings, self._unsummarized_savings = Counter[int](), Counter[int]()

    def stop_at(self, entry: Entry) -> None:
        """Count nothing: the gap holds this message and everything before it."""
        self._newest_seq = self._after = entry.seq
        self._summarized_to = -1

    def add(self, entry: Entry) -> None:
        """Count a message."""
        is_unsummarized = entry.seq > self._summarized_to
        self._newest_seq = max(self._newest_seq, entry.seq)
        self._messages += 1
        self._tokens += entry.lane_tokens
        if is_unsummarized:
            self._unsummarized_messages += 1
            self._unsummarized_tokens += entry.lane_tokens
        if group := self._groups.add(entry):
            for truncator in self._truncators:
                saved = count_saved(group, truncator, Rendering(), group.entries[-1].seq)
                self._savings[truncator.share] += saved
                self._unsummarized_savings[truncator.share] += saved if is_unsummarized else 0

    def make_gap(self) -> ArchivedPart:
        """The gap, with the sums."""
        shares = sorted({truncator.share for truncator in self._truncators})
        return ArchivedPart(
            newest_seq=self._newest_seq,
            after=self._after,
            messages=self._messages,
            tokens=self._tokens,
            summarized_to=self._summarized_to,
            unsummarized_messages=self._unsummarized_messages,
            unsummarized_tokens=self._unsummarized_tokens,
            savings=tuple((share, self._savings[share]) for share in shares),
            unsummarized_savings=tuple((share, self._unsummarized_savings[share]) for share in shares),
            pinned=self._layers.pinned,
            layers=self._layers,
        )


class _Reach:
    """Decides how far back a lane is read for contexts under some policies.

    Attributes:
        is_exceeded: Whether the messages added exceed every budget and reach beyond the newest run.
    """

    def __init__(self, policies: Sequence[ContextPolicy]) -> None:
        self._policies = policies
        self._room = [policy.budget for policy in policies]
        self._groups = _GroupBuilder()
        self._run_id: str | None = None
        self._runs = 0
        self.is_exceeded = False

    def add(self, entry: Entry) -> None:
        """Add the next older message."""
        role = entry.read(MessagePayload).role
        if group := self._groups.add(entry):
            for index, policy in enumerate(self._policies):
                block = Rendering(estimator=choose_estimator(policy)).render_group(group, group.entries[-1].seq)
                if block.kind in list_block_kinds(policy):
                    self._room[index] -= count_smallest(block, policy)
        if role == "user":
            run_id = entry.refs.get("run_id")
            if self._runs == 0 or run_id is None or run_id != self._run_id:
                self._runs += 1
            self._run_id = run_id
        # A user's message of another run shows where the newest run begins.
        self.is_exceeded = max(self._room) < 0 and self._runs > 1 and role != "tool"
