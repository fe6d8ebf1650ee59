"""Reading as much of a thread as a context is made of, the newest entry first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clew.context._lane_view import choose_estimator, shows_block
from clew.context.blocks import Rendering
from clew.context.truncation import Cutter, compute_results_share, count_saved, count_smallest
from clew.contract.payloads import AppliedSwitch, ConfigPayload, MessagePayload, OperationPayload, ToolMessage
from clew.contract.policy import ContextPolicy
from clew.thread.entries import DEFAULT_LANE, Entry
from clew.thread.lane import Gap, Group
from clew.thread.layers import Layers, is_base
from clew.thread.source import BackwardReader
from clew.thread.thread import Retained, Thread

GROUP_ENTRIES = 50
"""How far the results of a group are looked for at first."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """What was read of a lane, in order, and the gap before it."""

    entries: tuple[Entry, ...]
    gap: Gap


async def load_lane(
    back: BackwardReader, context_ref: str, policies: Sequence[ContextPolicy], layers: Layers | None = None
) -> LanePart:
    """Read as much of a lane as contexts under the policies can reach.

    `layers`: the caller's layers, when it knows operations that the archive does not have yet.
    """
    layers = await _read_layers(back, context_ref) if layers is None else replace(layers, seq=-1)
    marks, pinned = await asyncio.gather(_marks(back, context_ref, layers), _pinned(back, context_ref, layers))
    top = layers.top
    after = top.summarized_to if all(policy.uses_summary for policy in policies) else top.after
    reach, kept = _Reach(policies), {entry.seq for entry in pinned}
    cutters = [Cutter(compute_results_share(policy)) for policy in policies if policy.window == "epoch"]
    saved, summed_saved, groups = Counter[int](), Counter[int](), Groups()
    messages: list[Entry] = []
    # A later snapshot may reach further back than this one: what was not read is not said to be nothing.
    gap = Gap(newest_seq=after, after=after, summarized_to=top.summarized_to, pinned=layers.pinned, layers=layers)
    async for entry in back.read("ai_message", context_ref=context_ref, from_seq=after + 1):
        if not reach.enough:
            messages.append(entry)
            reach.read(entry)
            continue
        if not cutters:
            gap = replace(gap, newest_seq=entry.seq, after=entry.seq, summarized_to=-1)
            break
        if entry.seq in kept:
            continue
        # Where an epoch begins follows from all that the lane has said.
        summed = entry.seq > gap.summarized_to
        gap = replace(
            gap,
            newest_seq=max(gap.newest_seq, entry.seq),
            messages=gap.messages + 1,
            tokens=gap.tokens + entry.lane_tokens,
            unsummarized_messages=gap.unsummarized_messages + summed,
            unsummarized_tokens=gap.unsummarized_tokens + (entry.lane_tokens if summed else 0),
        )
        if group := groups.older(entry):
            for cutter in cutters:
                tokens = count_saved(group, cutter, Rendering(), group.entries[-1].seq)
                saved[cutter.share] += tokens
                summed_saved[cutter.share] += tokens if summed else 0
    shares = sorted({cutter.share for cutter in cutters})
    gap = replace(
        gap,
        savings=tuple((share, saved[share]) for share in shares),
        unsummarized_savings=tuple((share, summed_saved[share]) for share in shares),
    )
    found = {entry.seq: entry for entry in (*marks, *pinned, *messages)}
    return LanePart(tuple(found[seq] for seq in sorted(found)), gap)


async def load_thread(
    back: BackwardReader,
    context_ref: str | None = None,
    policies: Callable[[ContextPolicy], ContextPolicy] = lambda policy: policy,
) -> Thread:
    """Read as much of a thread as the context of a lane, by default the active one, needs at its newest entry.

    `policies` makes the policy that is wanted of the one in force.
    """
    configs, switch = await asyncio.gather(
        _configs(back.read("config")),
        _newest_switch(back.read("ai_context_operation")),
    )
    config = configs[0] if configs else None
    lane = context_ref or (switch.read(OperationPayload).context_ref if switch else DEFAULT_LANE)
    policy = policies(config.read(ConfigPayload).policy if config else ContextPolicy())
    part = await load_lane(back, lane, [policy])
    marks = (mark for mark in (*configs, switch) if mark)
    return make_archived_thread(back.upto, (*marks, *part.entries), {lane: part.gap})


def make_archived_thread(upto: int, entries: Iterable[Entry], gaps: Mapping[str, Gap]) -> Thread:
    """A thread all of which is archived, with what was read of it."""
    kept = {entry.seq: entry for entry in entries}
    return Thread((), upto + 1, Retained(upto, tuple(kept[seq] for seq in sorted(kept)), gaps))


async def _read_layers(back: BackwardReader, context_ref: str) -> Layers:
    """What a lane stands upon: all that was laid upon its last snapshot that was no compaction."""
    operations: list[Entry] = []
    async for entry in back.read("ai_context_operation", context_ref=context_ref):
        operations.append(entry)
        if is_base(entry):
            break
    base = operations[-1].seq if operations and is_base(operations[-1]) else 0
    summaries = [entry async for entry in back.read("summary", context_ref=context_ref, from_seq=base)]
    layers = Layers()
    for entry in sorted((*operations, *summaries), key=lambda entry: entry.seq):
        layers = layers.apply(entry)
    return layers


async def _marks(back: BackwardReader, context_ref: str, layers: Layers) -> list[Entry]:
    """The snapshot and the summary in force, as far as they are there."""
    top = layers.top
    where = (("ai_context_operation", top.anchor), ("summary", top.summary))
    return [
        entry
        for kind, seq in where
        if 0 <= seq <= back.upto
        async for entry in back.read(kind, context_ref=context_ref, from_seq=seq, to_seq=seq)
    ]


async def _pinned(back: BackwardReader, context_ref: str, layers: Layers) -> list[Entry]:
    """What is pinned, each entry with its group."""
    found: dict[int, Entry] = {}
    for seq in layers.pinned:
        if seq not in found:
            group = await _group(back, context_ref, seq)
            found |= {entry.seq: entry for entry in (*group, *await _late(back, context_ref, group))}
    return list(found.values())


async def _late(back: BackwardReader, context_ref: str, group: Sequence[Entry]) -> list[Entry]:
    """The results that arrived after the run of a group: wherever they are in the lane."""
    results = [entry.body for entry in group]
    doubts = {said.tool_call_id for said in results if isinstance(said, ToolMessage) and said.in_doubt}
    if not doubts:
        return []
    later = back.read("ai_message", context_ref=context_ref, from_seq=group[-1].seq + 1)
    return [
        entry
        async for entry in later
        if isinstance(said := entry.body, ToolMessage) and said.late and said.tool_call_id in doubts
    ]


async def _group(back: BackwardReader, context_ref: str, seq: int) -> list[Entry]:
    """The group of one of the lane's messages; nothing where it is none."""
    start = -1
    async for entry in back.read("ai_message", context_ref=context_ref, to_seq=seq):
        if entry.seq != seq and start < 0:
            return []
        start = entry.seq
        if not isinstance(entry.body, ToolMessage):
            break
    # Results come right after their calls, but for what other lanes say meanwhile.
    width = GROUP_ENTRIES
    while start >= 0:
        upto, ends = start + width, start + width >= back.upto
        group: list[Entry] = []
        async for entry in back.read("ai_message", context_ref=context_ref, from_seq=start, to_seq=upto):
            if entry.seq > start and not isinstance(entry.body, ToolMessage):
                group, ends = [], True
            else:
                group.append(entry)
        if ends:
            return group
        width *= 4
    return []


async def _configs(found: AsyncIterator[Entry]) -> list[Entry]:
    """The configuration in force, and before it those that have left the system prompt as it is."""
    configs: list[Entry] = []
    async for entry in found:
        if configs and entry.read(ConfigPayload).prompt != configs[0].read(ConfigPayload).prompt:
            break
        configs.append(entry)
    return configs


async def _newest_switch(found: AsyncIterator[Entry]) -> Entry | None:
    """The first entry that made a lane the active one."""
    async for entry in found:
        if isinstance(entry.read(OperationPayload).operation, AppliedSwitch):
            return entry
    return None


class Groups:
    """Puts a lane's messages, read from the newest on, into groups."""

    def __init__(self) -> None:
        self._results: dict[str, Entry] = {}

    def older(self, entry: Entry) -> Group | None:
        """The group that a message is the first of. A result without its call is in none."""
        said = entry.read(MessagePayload)
        if isinstance(said, ToolMessage):
            self._results[said.tool_call_id] = entry
            return None
        answers = (self._results.get(call_id) for call_id in set(said.call_ids))
        results = sorted((answer for answer in answers if answer), key=lambda answer: answer.seq)
        self._results.clear()
        return Group([entry, *results])


class _Reach:
    """How much has been read of a lane, the newest first: `enough` when it is more than any context is made of."""

    def __init__(self, policies: Sequence[ContextPolicy]) -> None:
        self._policies = policies
        self._left = [policy.budget for policy in policies]
        self._groups = Groups()
        self._run_id: str | None = None
        self._asked = 0
        self.enough = False

    def read(self, entry: Entry) -> None:
        role = entry.read(MessagePayload).role
        if group := self._groups.older(entry):
            for place, policy in enumerate(self._policies):
                block = Rendering(estimator=choose_estimator(policy)).render_group(group, group.entries[-1].seq)
                if shows_block(policy, block):
                    self._left[place] -= count_smallest(block, policy)
        if role == "user":
            run_id = entry.refs.get("run_id")
            if self._asked == 0 or run_id is None or run_id != self._run_id:
                self._asked += 1
            self._run_id = run_id
        # The newest run's first message is known by the one before it, which is another run's.
        self.enough = max(self._left) < 0 and self._asked > 1 and role != "tool"
