"""What the archive's objects hold, and how they are encoded. Pure and deterministic.

Segments hold entries. The index over them is an append-only tree of immutable nodes, so that one digest names a
complete thread. A `Ref` points to a segment (level 0) or to a node of level n, whose children are all of level n - 1.
A root is a node too, and the only one with children of several levels: their levels never rise from first to last.
A ref's `to_seq` may be less than the last seq of its object: the ref covers a prefix of it. This is how forks share
objects. A head names a session's root and state; it is the only mutable object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from clew_activities.archive.archive_errors import ObjectDamaged
from clew_workflows.contract.content import Digest
from clew_workflows.contract.lists import SessionSummary
from clew_workflows.contract.messages import canonicalize, compute_digest
from clew_workflows.thread.entries import Entry
from clew_workflows.values import Format

SEGMENT = Format("archive segment")
NODE = Format("archive node")
HEAD = Format("archive head")


class Head(BaseModel):
    """The head of a session's archive.

    Attributes:
        version: The format.
        session_id: The session.
        family: The session that this one and its siblings were forked from, directly or not; itself if none.
        root: Digest of the root of the archived thread; None: nothing is archived.
        last_seq: Seq of the last archived entry; -1: nothing is archived.
        state: Digest of the session's state; None: there is none.
        status: `closed`: the session ended in good order and all of it is archived; `live`: it has not.
        run_id: Id of the workflow execution that wrote the head.
        summary: What lists show of the session; None: it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = HEAD.version
    session_id: str
    family: str
    root: str | None = None
    last_seq: int = -1
    state: str | None = None
    status: Literal["live", "closed"] = "live"
    run_id: str | None = None
    summary: SessionSummary | None = None

    def encode(self) -> bytes:
        """Encode the head for the store, with a checksum."""
        fields = self.model_dump(mode="json")
        return canonicalize({**fields, "digest": compute_digest(fields)})

    @classmethod
    def decode(cls, data: bytes, session_id: str, name: str) -> Head:
        """Decode the stored head of a session.

        In every version the checksum is that of the other fields.

        Raises:
            NewerVersion: A newer version of Clew has written the head.
            ObjectDamaged: The bytes are not a head, or the head of another session.
        """
        try:
            fields = json.loads(data)
            if fields.pop("digest") != compute_digest(fields):
                raise ObjectDamaged(name, "its checksum does not match")
            fields = HEAD.upgrade(fields, HEAD.check(fields["version"], name))
            head = cls.model_validate({**fields, "version": HEAD.version})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ObjectDamaged(name, f"it is not a head: {why}") from None
        # A file system that ignores case may return the head of another session.
        if head.session_id != session_id:
            raise ObjectDamaged(name, f"it is the head of {head.session_id!r}")
        return head


def hash_bytes(data: bytes) -> str:
    """Hash the bytes of an immutable object: SHA-256 as 64 hexadecimal digits, the object's name."""
    return hashlib.sha256(data).hexdigest()


def check_digest(data: bytes, digest: str, name: str) -> None:
    """Check that an object has the content that its name says.

    Raises:
        ObjectDamaged: The bytes do not match `digest`.
    """
    if hash_bytes(data) != digest:
        raise ObjectDamaged(name, "its checksum does not match")


def encode_segment(entries: Sequence[Entry]) -> bytes:
    """Encode consecutive entries as JSON lines: a header, then one entry a line. Equal entries give equal bytes.

    Raises:
        ValueError: There is no entry, or an entry holds a value that JSON cannot express.
    """
    if not entries:
        raise ValueError("a segment holds at least one entry")
    header = {"clew": "segment", "version": SEGMENT.version, "from_seq": entries[0].seq, "to_seq": entries[-1].seq}
    return b"".join([_encode_line(header), *(_encode_line(entry.as_dict()) for entry in entries)])


def decode_segment(data: bytes, digest: str, name: str) -> list[Entry]:
    """Decode a segment. Returns its entries.

    Raises:
        NewerVersion: A newer version of Clew has written the segment.
        ObjectDamaged: The bytes do not match `digest`, or are not a segment.
    """
    check_digest(data, digest, name)
    try:
        header, *lines = [json.loads(line) for line in data.splitlines()]
        if header["clew"] != "segment":
            raise ObjectDamaged(name, f"it is not a segment: {str(header)[:100]}")
        version = SEGMENT.check(header["version"], name)
        entries = [Entry.from_json(SEGMENT.upgrade(line, version)) for line in lines]
        first, last = int(header["from_seq"]), int(header["to_seq"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ObjectDamaged(name, f"it cannot be read: {error}") from None
    if not entries or [entry.seq for entry in entries] != list(range(first, last + 1)):
        raise ObjectDamaged(name, f"it does not hold each of the entries {first} to {last} once")
    return entries


def split_entries(entries: Iterable[Entry], max_bytes: int) -> list[list[Entry]]:
    """Split entries into parts whose segments have about `max_bytes` at most. An entry is never divided.

    It is deterministic: the same entries are always split after the same ones.
    """
    parts: list[list[Entry]] = []
    size = 0
    for entry in entries:
        length = len(_encode_line(entry.as_dict()))
        if not parts or size + length > max_bytes:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += length
    return parts


def _encode_line(value: dict[str, Any]) -> bytes:
    # Not RFC 8785: it rounds integers beyond 2^53 and sorts the members of objects. Models read the members in their
    # order, and the digests of sent requests are over it.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


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

    digest: Digest
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


def encode_node(children: Iterable[Ref]) -> bytes:
    """Encode a node. Equal children give equal bytes."""
    return canonicalize(
        {"clew": "node", "version": NODE.version, "children": [child.model_dump(mode="json") for child in children]}
    )


def decode_node(data: bytes, digest: str, name: str) -> Children:
    """Decode a node. Returns its children.

    Raises:
        NewerVersion: A newer version of Clew has written the node.
        ObjectDamaged: The bytes do not match `digest`, or are not a node.
    """
    check_digest(data, digest, name)
    try:
        value = from_json(data)
        value = NODE.upgrade(value, NODE.check(value["version"], name))
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


def append_refs(children: Children, refs: Iterable[Ref], fanout: int) -> tuple[Children, list[bytes]]:
    """Append segments to a root's children. Returns the new children and the new nodes, lower levels first.

    When the last `fanout` children have one level, they become one node of the next level. So a root stays small.
    """
    grown = list(children)
    nodes: list[bytes] = []
    for ref in refs:
        grown.append(ref)
        while len(grown) >= fanout and grown[-fanout].level == grown[-1].level:
            nodes.append(encode_node(grown[-fanout:]))
            grown[-fanout:] = [_make_parent(grown[-fanout:], nodes[-1])]
    return tuple(grown), nodes


def truncate_children(children: Children, at_seq: int) -> Children:
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
    visible = truncate_children(children, ref.to_seq)
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
