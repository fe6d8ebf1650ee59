"""Threads whose older part is in an archive: what a thread keeps of it, and what a reader loads of it.

`retain` chooses the archived entries that a thread keeps because contexts still need them. `load_lane` and
`load_thread` read the part of an archived thread that a context needs, the newest entry first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic_core import to_json

from clew_workflows.contract.errors import Archived
from clew_workflows.contract.payloads import (
    ConfigPayload,
    MessagePayload,
    OperationPayload,
    ToolMessage,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.blocks import (
    Block,
    Rendering,
    Truncator,
    compute_results_share,
    count_saved,
    count_smallest,
)
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput, choose_estimator, list_block_kinds
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.lane import ArchivedPart, GapSize, Group, Lane, Layers, is_base
from clew_workflows.thread.source import BackwardReader
from clew_workflows.thread.thread import Retained, Thread, find_last

# Retention.


def retain(
    thread: Thread,
    first_seq: int,
    needs: Mapping[str, Sequence[ContextPolicy]],
    room: int,
    upto: int | None = None,
    *,
    held_from: int | None = None,
) -> Retained:
    """Choose what a thread must keep of its entries before `first_seq`, so that contexts stay the same without them.

    `needs`: the lanes to keep, each with the policies of its contexts. A lane that the thread does not hold enough of
    is left out.
    `room`: the most bytes of JSON for the messages of all lanes. If they need more, each lane keeps its newest.
    `upto`: contexts at this seq and later stay the same; None: the newest.
    `held_from`: all messages from this seq on are kept, whether contexts need them or not; None: no others.
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
            lane = _retain_lane(views, first_seq, room, first_seq if held_from is None else held_from)
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


def _retain_lane(views: Sequence[LaneView], first_seq: int, room: int, held_from: int) -> _RetainedLane:
    """Choose what to keep of a lane. The views are of this lane, one for each policy."""
    view = views[0]
    lane = view.lane
    low = min(_find_group_end_before(lane, held_from) + 1, *(_find_reach(view) for view in views))
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

    older = bisect_left(lane.message_seqs, low)
    newest_seq = max(lane.gap.newest_seq, lane.message_seqs[older - 1] if older else -1)
    gap = ArchivedPart(
        newest_seq=newest_seq,
        sizes=tuple(_measure_gap(views, newest_seq)),
        no_user_after=user.after,
        pinned=tuple(pinned_seqs),
        dropped_user_seq=user.dropped_seq,
        read_after=lane.gap.read_after,
        # The gap was measured, and its user's messages chosen, without all that was withdrawn or corrected by now.
        layers=replace(
            lane.find_layers(first_seq - 1), withdrawn=view.layers.withdrawn, corrected=view.layers.corrected
        ),
    )
    window = [entry for entry in window if entry.seq not in others_by_seq]
    return _RetainedLane(gap, [*window, *others_by_seq.values()], size)


def _measure_gap(views: Sequence[LaneView], newest_seq: int) -> Iterator[GapSize]:
    """Measure the gap up to a seq, after each seq at which a context may begin. What is not known is left out."""
    lane, upto = views[0].lane, views[0].upto
    counts_savings = newest_seq == lane.gap.newest_seq or _ends_between_groups(lane, newest_seq, upto)
    for after in sorted({after for view in views for after in (view.after, view.summarized_to)}):
        with suppress(Archived):
            messages, tokens = views[0].count_since(after)
            newer_messages, newer_tokens = lane.count_messages(newest_seq + 1, upto)
            saved: dict[int, int] = {}
            for view in views:
                if view.policy.window == "epoch" and counts_savings:
                    with suppress(Archived):
                        newer = view.count_saved_from(newest_seq + 1)
                        saved[view.truncator.share] = view.count_saved_since(after) - newer
            if after < newest_seq:
                yield GapSize(after, messages - newer_messages, tokens - newer_tokens, tuple(sorted(saved.items())))


def _find_group_end_before(lane: Lane, seq: int) -> int:
    """Find the last seq before another one at which no group is cut."""
    groups = bisect_right(lane.group_starts, seq)
    is_cut = groups and lane.groups[groups - 1].entries[-1].seq >= seq
    return (lane.group_starts[groups - 1] if is_cut else seq) - 1


def _ends_between_groups(lane: Lane, seq: int, upto: int) -> bool:
    """Whether the last group up to a seq has all of its results there, and will have no others."""
    groups = bisect_right(lane.group_starts, seq)
    if groups == 0:
        return True
    return groups < bisect_right(lane.group_starts, upto) and lane.groups[groups - 1].entries[-1].seq <= seq


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


def _find_reach(view: LaneView) -> int:
    """Find the seq of the oldest message that a context may hold."""
    policy, tokens, is_newest = view.policy, 0, True
    try:
        for block, _, measured in view.iterate_measured_blocks():
            if policy.window == "epoch":
                # Its window is chosen by what the messages measure.
                tokens = measured
            else:
                tokens += count_smallest(block, policy, is_required=is_newest or block.pinned)
            is_newest = False
            if tokens > policy.budget and block.start is not None:
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
    first = bisect_right(lane.turn_starts, after)
    seqs = lane.turn_starts[first:turns]
    chosen = {seq: thread[seq] for seq in (start, *seqs[:1], lane.turn_starts[turns - 1])}
    for seq in reversed(seqs):
        if seq in chosen or seq >= low or (room := room - _measure([thread[seq]])) >= 0:
            chosen[seq] = thread[seq]
        else:
            return _UserMessages(after, list(chosen.values()), seq)
    # Contexts that do not begin with the summary may need those before it.
    summarized = lane.turn_starts[bisect_left(lane.turn_starts, start) : first]
    dropped = (seq for seq in summarized if seq < low and seq not in chosen)
    return _UserMessages(after, list(chosen.values()), max((lane.gap.dropped_user_seq, *dropped)))


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
    reader: BackwardReader,
    context_ref: str,
    policies: Sequence[ContextPolicy],
    layers: Layers | None = None,
    held_from: int | None = None,
) -> LanePart:
    """Read the part of a lane that contexts under the policies can hold.

    `layers`: the caller's layers, when it knows operations that the archive does not have yet.
    `held_from`: the messages from this seq on are read in any case, because the caller has them.
    """
    layers = await _read_layers(reader, context_ref) if layers is None else replace(layers, seq=-1)
    layer_entries, pinned = await asyncio.gather(
        _read_layer_entries(reader, context_ref, layers), _read_pinned(reader, context_ref, layers)
    )
    top = layers.top
    starts = {top.summarized_to if policy.uses_summary else top.after for policy in policies}
    # The beginning of an epoch's window depends on the size of the whole lane, an automatic summary on what is new.
    truncators = [Truncator(compute_results_share(policy)) for policy in policies if policy.window == "epoch"]
    counts = bool(truncators) or any(policy.writes_summaries for policy in policies)
    reach, counter = _Reach(policies, layers.pinned), _GapCounter({*starts, top.summarized_to}, truncators)
    messages: list[Entry] = []
    async for entry in reader.read("ai_message", context_ref=context_ref, from_seq=min(starts) + 1):
        if layers.leaves_out(entry):
            continue
        is_done = reach.is_exceeded and (held_from is None or messages[-1].seq <= held_from)
        if counter.is_empty and not is_done:
            messages.append(entry)
            reach.add(entry)
        else:
            counter.add(entry)
            if not counts:
                break
    loaded = {entry.seq: entry for entry in (*layer_entries, *pinned, *messages)}
    gap = ArchivedPart(
        # The messages up to where contexts begin are not read, and a later snapshot may need them.
        newest_seq=max(counter.newest_seq, min(starts)),
        sizes=counter.make_sizes() if counts else (),
        pinned=layers.pinned,
        read_after=min(starts),
        layers=layers,
    )
    return LanePart(tuple(loaded[seq] for seq in sorted(loaded)), gap)


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
    """Read a lane's layers: all operations, and the summaries since its last snapshot that is no compaction."""
    operations = [entry async for entry in reader.read("ai_context_operation", context_ref=context_ref)]
    base = next((entry.seq for entry in operations if is_base(entry)), 0)
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
    """Counts the messages of a lane that are read and not kept, newest first, after each of some seqs.

    Attributes:
        newest_seq: The seq of the newest message counted; -1: none was.
    """

    def __init__(self, starts: Collection[int], truncators: Sequence[Truncator]) -> None:
        self.newest_seq = -1
        self._groups, self._truncators = _GroupBuilder(), truncators
        self._messages, self._tokens = Counter[int](), Counter[int]()
        self._starts, self._savings = sorted(starts), {start: Counter[int]() for start in starts}

    @property
    def is_empty(self) -> bool:
        """Whether no message was counted."""
        return self.newest_seq < 0

    def add(self, entry: Entry) -> None:
        """Count a message."""
        self.newest_seq = max(self.newest_seq, entry.seq)
        starts = [start for start in self._starts if entry.seq > start]
        for start in starts:
            self._messages[start] += 1
            self._tokens[start] += entry.lane_tokens
        if group := self._groups.add(entry):
            for truncator in self._truncators:
                saved = count_saved(group, truncator, Rendering(), group.entries[-1].seq)
                for start in starts:
                    self._savings[start][truncator.share] += saved

    def make_sizes(self) -> tuple[GapSize, ...]:
        """The size of the gap after each of the seqs."""
        shares = sorted({truncator.share for truncator in self._truncators})
        return tuple(
            GapSize(
                start,
                self._messages[start],
                self._tokens[start],
                tuple((share, self._savings[start][share]) for share in shares),
            )
            for start in self._starts
            if start < self.newest_seq
        )


class _Reach:
    """Decides how far back a lane is read for contexts under some policies.

    Attributes:
        is_exceeded: Whether every budget is exceeded by the messages added, of which the last is one that contexts
            under the policy may show, and they reach beyond the newest run.
    """

    def __init__(self, policies: Sequence[ContextPolicy], pinned: Collection[int]) -> None:
        self._policies, self._pinned = policies, pinned
        self._room = [policy.budget for policy in policies]
        self._exceeded = [False] * len(policies)
        self._groups = _GroupBuilder()
        self._has_newest_group = False
        self._run_id: str | None = None
        self._runs = 0
        self.is_exceeded = False

    def add(self, entry: Entry) -> None:
        """Add the next older message."""
        role = entry.read(MessagePayload).role
        if group := self._groups.add(entry):
            for index, policy in enumerate(self._policies):
                block = Rendering(estimator=choose_estimator(policy)).render_group(group, group.entries[-1].seq)
                is_shown = block.kind in list_block_kinds(policy)
                if policy.window == "epoch":
                    self._room[index] -= self._measure(group, policy)
                elif is_shown:
                    self._room[index] -= count_smallest(block, policy, is_required=self._is_required(block))
                self._exceeded[index] |= is_shown and self._room[index] < 0
            self._has_newest_group = True
        if role == "user":
            run_id = entry.refs.get("run_id")
            if self._runs == 0 or run_id is None or run_id != self._run_id:
                self._runs += 1
            self._run_id = run_id
        # A user's message of another run shows where the newest run begins.
        self.is_exceeded = all(self._exceeded) and self._runs > 1 and role != "tool"

    def _is_required(self, block: Block) -> bool:
        return not self._has_newest_group or any(seq in self._pinned for seq in block.seqs)

    def _measure(self, group: Group, policy: ContextPolicy) -> int:
        """Measure a group as an epoch does, or less: late results may make the newest group measure less."""
        if not self._has_newest_group:
            return 0
        truncator = Truncator(compute_results_share(policy))
        saved = count_saved(group, truncator, Rendering(), group.entries[-1].seq)
        return sum(entry.lane_tokens for entry in group.entries) - saved
