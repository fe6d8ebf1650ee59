"""Loading: reads the part of an archived thread that a context needs, the newest entry first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clew_workflows.contract.payloads import (
    AppliedReplace,
    ConfigPayload,
    MessagePayload,
    OperationPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context._lane_view import choose_estimator, shows_block
from clew_workflows.thread.context.blocks import Rendering
from clew_workflows.thread.context.truncation import Truncator, compute_results_share, count_saved, count_smallest
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.lane import ArchivedPart, Group, Layers, find_base_seq, is_base
from clew_workflows.thread.source import BackwardReader
from clew_workflows.thread.thread import Retained, Thread

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
    """Read a lane's layers: all operations and summaries from its last snapshot that was no compaction.

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
                if shows_block(policy, block):
                    self._room[index] -= count_smallest(block, policy)
        if role == "user":
            run_id = entry.refs.get("run_id")
            if self._runs == 0 or run_id is None or run_id != self._run_id:
                self._runs += 1
            self._run_id = run_id
        # A user's message of another run shows where the newest run begins.
        self.is_exceeded = max(self._room) < 0 and self._runs > 1 and role != "tool"
