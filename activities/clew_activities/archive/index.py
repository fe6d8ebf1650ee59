"""The index: an append-only tree of immutable nodes over segments, so that one digest names a complete thread.

A `Ref` points to a segment (level 0) or to a node of level n, whose children are all of level n - 1. A root is a
node too, and the only one with children of several levels: their levels never rise from first to last. A ref's
`to_seq` may be less than the last seq of its object: the ref covers a prefix of it. This is how forks share objects.
All functions are pure and deterministic: repeated after a crash they give the same digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import from_json, to_json

from clew_activities.archive.errors import ObjectDamaged
from clew_activities.archive.segment import hash_bytes
from clew_workflows.contract.messages import canonicalize
from clew_workflows.thread.entries import Entry
from clew_workflows.values import Format

FORMAT = Format("archive node")

Children = tuple["Ref", ...]


class Ref(BaseModel):
    """A reference to an object that holds a part of a thread.

    Attributes:
        digest: Digest of the object.
        level: 0: a segment; n: a node over objects of level n - 1.
        from_seq: Seq of the first entry.
        to_seq: Seq of the last entry.
        kinds: Kinds of entries that the part may hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    level: int = Field(ge=0)
    from_seq: int = Field(ge=0)
    to_seq: int = Field(ge=0)
    kinds: tuple[str, ...]


class _Node(BaseModel):
    model_config = ConfigDict(extra="forbid")

    clew: Literal["node"]
    version: int
    children: tuple[Ref, ...] = Field(min_length=1)


def make_segment_ref(entries: Sequence[Entry], data: bytes) -> Ref:
    """Make the ref to the segment `data` of these entries."""
    kinds = tuple(sorted({entry.kind for entry in entries}))
    return Ref(digest=hash_bytes(data), level=0, from_seq=entries[0].seq, to_seq=entries[-1].seq, kinds=kinds)


def encode(children: Iterable[Ref]) -> bytes:
    """Encode a node. Equal children give equal bytes."""
    return canonicalize(
        {"clew": "node", "version": FORMAT.version, "children": [child.model_dump(mode="json") for child in children]}
    )


def decode(data: bytes, digest: str, name: str) -> Children:
    """Decode a node. Returns its children.

    Raises:
        NewerVersion: A newer version of Clew has written the node.
        ObjectDamaged: The bytes do not match `digest`, or are not a node.
    """
    if hash_bytes(data) != digest:
        raise ObjectDamaged(name, "its checksum does not match")
    try:
        value = from_json(data)
        value = FORMAT.upgrade(value, FORMAT.check(value["version"], name))
        children = _Node.model_validate_json(to_json(value)).children
    except ValidationError as error:
        first = error.errors()[0]
        raise ObjectDamaged(name, f"it is not a node: {first['loc']}: {first['msg']}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ObjectDamaged(name, f"it is not a node: {error}") from None
    if any(left.to_seq + 1 != right.from_seq or left.level < right.level for left, right in pairwise(children)):
        raise ObjectDamaged(name, "its children do not follow one another")
    if any(child.from_seq > child.to_seq for child in children):
        raise ObjectDamaged(name, "one of its children is empty")
    return children


def append(children: Children, refs: Iterable[Ref], fanout: int) -> tuple[Children, list[bytes]]:
    """Append segments to a root's children. Returns the new children and the new nodes, lower levels first.

    When the last `fanout` children have one level, they become one node of the next level. So a root stays small.
    """
    grown = list(children)
    nodes: list[bytes] = []
    for ref in refs:
        grown.append(ref)
        while len(grown) >= fanout and grown[-fanout].level == grown[-1].level:
            nodes.append(encode(grown[-fanout:]))
            grown[-fanout:] = [_make_parent(grown[-fanout:], nodes[-1])]
    return tuple(grown), nodes


def truncate(children: Children, at_seq: int) -> Children:
    """Drop the children, or their parts, after `at_seq`."""
    return tuple(
        child if child.to_seq <= at_seq else child.model_copy(update={"to_seq": at_seq})
        for child in children
        if child.from_seq <= at_seq
    )


def limit_children(ref: Ref, children: Children, name: str) -> Children:
    """Drop a node's children, or their parts, after the end of a ref to the node.

    Raises:
        ObjectDamaged: The node does not hold what the ref describes.
    """
    if (
        children[0].from_seq != ref.from_seq
        or children[-1].to_seq < ref.to_seq
        or any(child.level != ref.level - 1 for child in children)
    ):
        raise ObjectDamaged(name, f"it does not hold the entries {ref.from_seq} to {ref.to_seq}")
    visible = truncate(children, ref.to_seq)
    if not {kind for child in visible for kind in child.kinds} <= set(ref.kinds):
        raise ObjectDamaged(name, "it holds kinds of entries that the index does not list")
    return visible


def _make_parent(children: Sequence[Ref], data: bytes) -> Ref:
    return Ref(
        digest=hash_bytes(data),
        level=children[0].level + 1,
        from_seq=children[0].from_seq,
        to_seq=children[-1].to_seq,
        kinds=tuple(sorted({kind for child in children for kind in child.kinds})),
    )
