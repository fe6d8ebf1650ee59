"""The layers of a lane: the snapshots and summaries that precede its messages in a context, and what it leaves out.

Layers are a stack. A summary, or a snapshot made by a compaction, is pushed onto the stack, so that an `expand` can
pop it. Any other snapshot starts a new stack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clew.contract.payloads import (
    AppliedExpand,
    AppliedPin,
    AppliedReplace,
    AppliedUnpin,
    AppliedWithdraw,
    OperationPayload,
    SummaryPayload,
)
from clew.thread.entries import Entry

MAX_LAYERS = 100
"""Layers of a lane that are kept: one less than this many compactions can be undone, one after another."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A snapshot or a summary, or both, that precedes a lane's messages in a context.

    Attributes:
        anchor: The seq of the snapshot; -1: there is none.
        summary: The seq of the summary; -1: there is none.
        after: The snapshot is followed by the lane's messages after this seq.
        summarized_to: The last seq that the summary covers.
        base: Whether no layer below has an effect.
    """

    anchor: int = -1
    summary: int = -1
    after: int = -1
    summarized_to: int = -1
    base: bool = False


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers, the pins and the withdrawals of a lane after one of its entries.

    Attributes:
        stack: The layers, the one in force last; empty where the lane's past is unknown.
        pinned: The seqs of the pinned entries.
        seq: The seq of the entry that last changed them; -1: none did.
        withdrawn: Pairs of seqs: the user's messages from one to the other, both included, were withdrawn.
    """

    stack: tuple[Layer, ...] = (Layer(base=True),)
    pinned: tuple[int, ...] = ()
    seq: int = -1
    withdrawn: tuple[tuple[int, int], ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the stack has every layer that has an effect."""
        return bool(self.stack) and self.stack[0].base

    @property
    def top(self) -> Layer:
        """The layer in force."""
        return self.stack[-1]

    @property
    def is_compacted(self) -> bool:
        """Whether an `expand` has a layer to pop."""
        return len(self.stack) > 1

    def withdraws(self, seq: int) -> bool:
        """Whether a user's message at a seq was withdrawn."""
        return any(first <= seq <= last for first, last in self.withdrawn)

    def apply(self, entry: Entry) -> Layers:
        """Return the layers after an operation or a summary of the lane."""
        body = entry.body
        if isinstance(body, SummaryPayload):
            # A summary has no effect where a snapshot or another summary already covers as much.
            if not self.stack or body.to_seq < self.top.summarized_to:
                return self
            return self._push(replace(self.top, summary=entry.seq, summarized_to=body.to_seq, base=False), entry)
        if not isinstance(body, OperationPayload):
            return self
        pinned = set(self.pinned)
        match body.operation:
            case AppliedReplace() as operation:
                after = find_base_seq(entry, operation)
                layer = Layer(entry.seq, after=after, summarized_to=after)
                if operation.is_compaction:
                    return self._push(layer, entry)
                later = tuple(withdrawn for withdrawn in self.withdrawn if withdrawn[1] > after)
                return Layers((replace(layer, base=True),), seq=entry.seq, withdrawn=later)
            case AppliedExpand() if self.is_compacted or not self.is_complete:
                return replace(self, stack=self.stack[:-1], seq=entry.seq)
            case AppliedPin(seqs=seqs):
                return replace(self, pinned=tuple(sorted(pinned | set(seqs))), seq=entry.seq)
            case AppliedUnpin(seqs=seqs):
                return replace(self, pinned=tuple(sorted(pinned - set(seqs))), seq=entry.seq)
            case AppliedWithdraw(from_seq=first):
                return replace(self, withdrawn=(*self.withdrawn, (first, entry.seq)), seq=entry.seq)
            case _:
                return self

    def _push(self, layer: Layer, entry: Entry) -> Layers:
        lower = self.stack[1 - MAX_LAYERS :]
        if len(lower) < len(self.stack):
            lower = (replace(lower[0], base=True), *lower[1:])
        return replace(self, stack=(*lower, layer), seq=entry.seq)


def is_base(entry: Entry) -> bool:
    """Whether a context operation starts a new stack: it puts a snapshot and is no compaction."""
    operation = entry.read(OperationPayload).operation
    return isinstance(operation, AppliedReplace) and not operation.is_compaction


def find_base_seq(anchor: Entry, operation: AppliedReplace) -> int:
    """Return the seq after which a lane's messages follow a snapshot: its `base_seq`, or the snapshot's own seq."""
    return anchor.seq if operation.base_seq is None else min(operation.base_seq, anchor.seq)
