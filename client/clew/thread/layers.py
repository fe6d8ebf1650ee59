"""The layers of a lane: what its context operations and its summaries have put under its messages.

It is a pile of layers. A compaction, be it a snapshot or a summary, lies upon what was there before, so that an
`expand` finds that again; any other snapshot begins a new pile.
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
"""Layers that an `expand` may still take off, one after the other."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A snapshot or a summary that a lane's messages follow upon.

    Attributes:
        anchor: The seq of the snapshot; -1: there is none.
        summary: The seq of the summary; -1: there is none.
        after: The lane's messages after this seq follow.
        summed: The summary speaks for everything up to this seq.
        base: Nothing below this layer counts.
    """

    anchor: int = -1
    summary: int = -1
    after: int = -1
    summarized_to: int = -1
    base: bool = False


@dataclass(frozen=True, slots=True)
class Layers:
    """What context operations and summaries have put under a lane's messages.

    Attributes:
        stack: The layers, the one in force last; none where nothing of the lane's past is known.
        pinned: The seqs of the entries that are pinned.
        seq: The entry as of which this is so.
    """

    stack: tuple[Layer, ...] = (Layer(base=True),)
    pinned: tuple[int, ...] = ()
    seq: int = -1

    @property
    def is_complete(self) -> bool:
        """Whether all that counts of it is known."""
        return bool(self.stack) and self.stack[0].base

    @property
    def top(self) -> Layer:
        """The layer in force."""
        return self.stack[-1]

    @property
    def is_compacted(self) -> bool:
        """Whether there is something for an `expand` to take off."""
        return len(self.stack) > 1

    def apply(self, entry: Entry) -> Layers:
        """The layers once one of the lane's operations or summaries has been committed."""
        body = entry.body
        if isinstance(body, SummaryPayload):
            # What a snapshot has taken out is not summed up, and a summary never gives way to one of less.
            if not self.stack or body.to_seq < self.top.summarized_to:
                return self
            return self._with(replace(self.top, summary=entry.seq, summarized_to=body.to_seq, base=False), entry)
        if not isinstance(body, OperationPayload):
            return self
        pinned = set(self.pinned)
        match body.operation:
            case AppliedReplace() as operation:
                after = find_base_seq(entry, operation)
                layer = Layer(entry.seq, after=after, summarized_to=after)
                if operation.is_compaction:
                    return self._with(layer, entry)
                return Layers((replace(layer, base=True),), seq=entry.seq)
            case AppliedExpand() if self.is_compacted or not self.is_complete:
                return Layers(self.stack[:-1], self.pinned, entry.seq)
            case AppliedPin(seqs=seqs):
                return Layers(self.stack, tuple(sorted(pinned | set(seqs))), entry.seq)
            case AppliedUnpin(seqs=seqs):
                return Layers(self.stack, tuple(sorted(pinned - set(seqs))), entry.seq)
            case _:
                return self

    def _with(self, layer: Layer, entry: Entry) -> Layers:
        lower = self.stack[1 - MAX_LAYERS :]
        if len(lower) < len(self.stack):
            lower = (replace(lower[0], base=True), *lower[1:])
        return Layers((*lower, layer), self.pinned, entry.seq)


def is_base(entry: Entry) -> bool:
    """Whether a context operation begins the lane anew: a snapshot that is no compaction."""
    operation = entry.read(OperationPayload).operation
    return isinstance(operation, AppliedReplace) and not operation.is_compaction


def find_base_seq(anchor: Entry, operation: AppliedReplace) -> int:
    """The seq after which a lane's messages follow upon a snapshot: its `base_seq`, or where it was put."""
    return anchor.seq if operation.base_seq is None else min(operation.base_seq, anchor.seq)
