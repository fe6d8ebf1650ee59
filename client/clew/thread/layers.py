"""The layers of a lane: the snapshots and summaries that precede its messages in a context.

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
    """The layers and the pins of a lane after one of its entries.

    Attributes:
        stack: The layers, the one in force last; empty where the lane's past is unknown.
        pinned: The seqs of the pinned entries.
        seq: The seq of the entry that last changed them; -1: none did.
    """

    stack: tuple[Layer, ...] = (Layer(base=True),)
    pinned: tuple[int, ...] = ()
    seq: int = -1

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
                return Layers((replace(layer, base=True),), seq=entry.seq)
            case AppliedExpand() if self.is_compacted or not self.is_complete:
                return Layers(self.stack[:-1], self.pinned, entry.seq)
            case AppliedPin(seqs=seqs):
                return Layers(self.stack, tuple(sorted(pinned | set(seqs))), entry.seq)
            case AppliedUnpin(seqs=seqs):
                return Layers(self.stack, tuple(sorted(pinned - set(seqs))), entry.seq)
            case _:
                return self

    def _push(self, layer: Layer, entry: Entry) -> Layers:
        lower = self.stack[1 - MAX_LAYERS :]
        if len(lower) < len(self.stack):
            lower = (replace(lower[0], base=True), *lower[1:])
        return Layers((*lower, layer), self.pinned, entry.seq)


def is_base(entry: Entry) -> bool:
    """Whether a context operation starts a new stack: it puts a snapshot and is no compaction."""
    operation = entry.read(OperationPayload).operation
    return isinstance(operation, AppliedReplace) and not operation.is_compaction


def find_base_seq(anchor: Entry, operation: AppliedReplace) -> int:
    """Return the seq after which a lane's messages follow a snapshot: its `base_seq`, or the snapshot's own seq."""
    return anchor.seq if operation.base_seq is None else min(operation.base_seq, anchor.seq)
