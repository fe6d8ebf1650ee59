"""The ground of a lane: what its context operations and its summaries have put under its messages.

It is a pile of layers. A compaction, be it a snapshot or a summary, lies upon what was there before, so that an
`expand` finds that again; any other snapshot begins a new pile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clew.thread.entries import Entry

REMEMBERED = 100
"""Layers that an `expand` may still take off, one after the other."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a lane's messages follow upon: those after the seq `after`.

    `anchor` is the seq of a snapshot, `summary` that of what speaks for everything up to `summed`; -1: there is none.
    Below a `base` nothing is to be found.
    """

    anchor: int = -1
    summary: int = -1
    after: int = -1
    summed: int = -1
    base: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """The layers, the one in force last, and the seqs of the entries that are pinned; all as of the entry `seq`.

    Where nothing of a lane's past is known, there are no layers.
    """

    layers: tuple[Layer, ...] = (Layer(base=True),)
    pinned: tuple[int, ...] = ()
    seq: int = -1

    @property
    def known(self) -> bool:
        """Whether all that counts of it is known."""
        return bool(self.layers) and self.layers[0].base

    @property
    def top(self) -> Layer:
        """The layer in force."""
        return self.layers[-1]

    @property
    def compacted(self) -> bool:
        """Whether there is something for an `expand` to take off."""
        return len(self.layers) > 1

    def under(self, entry: Entry) -> Ground:
        """The ground once one of the lane's operations or summaries has been committed."""
        if entry.kind == "summary":
            to_seq: int = entry.payload["to_seq"]
            # What a snapshot has taken out is not summed up, and a summary never gives way to one of less.
            if not self.layers or to_seq < self.top.summed:
                return self
            return self._with(replace(self.top, summary=entry.seq, summed=to_seq, base=False), entry)
        operation = entry.payload["operation"]
        pinned = set(self.pinned)
        match operation["type"]:
            case "replace":
                after = follows_after(entry)
                layer = Layer(entry.seq, after=after, summed=after)
                if is_base(entry):
                    return Ground((replace(layer, base=True),), seq=entry.seq)
                return self._with(layer, entry)
            case "expand" if self.compacted or not self.known:
                return Ground(self.layers[:-1], self.pinned, entry.seq)
            case "pin":
                return Ground(self.layers, tuple(sorted(pinned | set(operation["seqs"]))), entry.seq)
            case "unpin":
                return Ground(self.layers, tuple(sorted(pinned - set(operation["seqs"]))), entry.seq)
            case _:
                return self

    def _with(self, layer: Layer, entry: Entry) -> Ground:
        lower = self.layers[1 - REMEMBERED :]
        if len(lower) < len(self.layers):
            lower = (replace(lower[0], base=True), *lower[1:])
        return Ground((*lower, layer), self.pinned, entry.seq)


def is_base(entry: Entry) -> bool:
    """Whether a context operation begins the lane anew: a snapshot that is no compaction."""
    operation = entry.payload["operation"]
    return bool(operation["type"] == "replace" and operation["reason"] != "compaction")


def follows_after(anchor: Entry) -> int:
    """The seq after which a lane's messages follow upon a snapshot: its `base_seq`, or where it was put."""
    base_seq: int | None = anchor.payload["operation"].get("base_seq")
    return anchor.seq if base_seq is None else min(base_seq, anchor.seq)
