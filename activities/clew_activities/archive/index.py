"""The index: an append-only tree of immutable nodes over segments, so that one digest names a whole thread.

A `Ref` points at a segment (level 0) or at a node of level n, whose children are all of level n - 1. A root is a
node too, and the only one with children of several levels: they never rise from first to last. A ref's `to_seq`
may be smaller than what its object holds: it is a view on a prefix, and this is how forks share objects.
Everything here is pure and deterministic: what is repeated after a crash yields the same digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from clew.model.canonical import canonicalize
from clew.thread.entries import Entry
from clew_activities.archive.errors import ObjectDamaged
from clew_activities.archive.segment import hash_bytes

Children = tuple["Ref", ...]


class Ref(BaseModel):
    """A part of a thread: where its entries are, which, and the kinds that may be among them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    level: int = Field(ge=0)
    from_seq: int = Field(ge=0)
    to_seq: int = Field(ge=0)
    kinds: tuple[str, ...]


class _Node(BaseModel):
    model_config = ConfigDict(extra="forbid")

    clew: Literal["node"]
    version: Literal[1]
    children: tuple[Ref, ...] = Field(min_length=1)


def make_segment_ref(entries: Sequence[Entry], data: bytes) -> Ref:
    """The ref to the segment `data` of these entries."""
    kinds = tuple(sorted({entry.kind for entry in entries}))
    return Ref(digest=hash_bytes(data), level=0, from_seq=entries[0].seq, to_seq=entries[-1].seq, kinds=kinds)


def encode(children: Iterable[Ref]) -> bytes:
    """The node of these children. Equal children give equal bytes."""
    return canonicalize(
        {"clew": "node", "version": 1, "children": [child.model_dump(mode="json") for child in children]}
    )


def decode(data: bytes, digest: str, name: str) -> Children:
    """The children of a node.

    Raises:
        ObjectDamaged: the bytes are not those that `digest` names, or no node; says which object.
    """
    if hash_bytes(data) != digest:
        raise ObjectDamaged(name, "its checksum does not match")
    try:
        children = _Node.model_validate_json(data).children
    except ValidationError as error:
        first = error.errors()[0]
        raise ObjectDamaged(name, f"it is no node of version 1: {first['loc']}: {first['msg']}") from None
    if any(left.to_seq + 1 != right.from_seq or left.level < right.level for left, right in pairwise(children)):
        raise ObjectDamaged(name, "its children do not follow one another")
    if any(child.from_seq > child.to_seq for child in children):
        raise ObjectDamaged(name, "one of its children is empty")
    return children


def append(children: Children, refs: Iterable[Ref], fanout: int) -> tuple[Children, list[bytes]]:
    """Append segments to a root's children: the children then, and the nodes that this makes, inner ones first.

    Whenever `fanout` children of one level trail, they become one node of the next level: a root stays small.
    """
    grown = list(children)
    nodes: list[bytes] = []
    for ref in refs:
        grown.append(ref)
        while len(grown) >= fanout and grown[-fanout].level == grown[-1].level:
            nodes.append(encode(grown[-fanout:]))
            grown[-fanout:] = [_parent(grown[-fanout:], nodes[-1])]
    return tuple(grown), nodes


def cut(children: Children, at_seq: int) -> Children:
    """The children as a view that ends at `at_seq`."""
    return tuple(
        child if child.to_seq <= at_seq else child.model_copy(update={"to_seq": at_seq})
        for child in children
        if child.from_seq <= at_seq
    )


def limit_children(ref: Ref, children: Children, name: str) -> Children:
    """What a ref to a node shows of the node's children.

    Raises:
        ObjectDamaged: the node is not the one that the ref describes.
    """
    if (
        children[0].from_seq != ref.from_seq
        or children[-1].to_seq < ref.to_seq
        or any(child.level != ref.level - 1 for child in children)
    ):
        raise ObjectDamaged(name, "it does not hold what the index says")
    visible = cut(children, ref.to_seq)
    if not {kind for child in visible for kind in child.kinds} <= set(ref.kinds):
        raise ObjectDamaged(name, "it holds kinds of entries that the index does not know of")
    return visible


def _parent(children: Sequence[Ref], data: bytes) -> Ref:
    return Ref(
        digest=hash_bytes(data),
        level=children[0].level + 1,
        from_seq=children[0].from_seq,
        to_seq=children[-1].to_seq,
        kinds=tuple(sorted({kind for child in children for kind in child.kinds})),
    )
