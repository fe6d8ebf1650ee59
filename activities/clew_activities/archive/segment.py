"""Segments: consecutive entries as immutable objects, named by their SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from clew_activities.archive.errors import SegmentDamaged
from clew_workflows.thread.entries import Entry
from clew_workflows.values import Format

FORMAT = Format("archive segment")


def hash_bytes(data: bytes) -> str:
    """Hash the bytes of an immutable object: SHA-256 as 64 hexadecimal digits, the object's name."""
    return hashlib.sha256(data).hexdigest()


def encode(entries: Sequence[Entry]) -> bytes:
    """Encode consecutive entries as JSON lines: a header, then one entry a line. Equal entries give equal bytes.

    Raises:
        ValueError: There is no entry, or an entry holds a value that JSON cannot express.
    """
    if not entries:
        raise ValueError("a segment holds at least one entry")
    header = {"clew": "segment", "version": FORMAT.version, "from_seq": entries[0].seq, "to_seq": entries[-1].seq}
    return b"".join([_encode_line(header), *(_encode_line(entry.as_dict()) for entry in entries)])


def decode(data: bytes, digest: str, name: str) -> list[Entry]:
    """Decode a segment. Returns its entries.

    Raises:
        NewerVersion: A newer version of Clew has written the segment.
        SegmentDamaged: The bytes do not match `digest`, or are not a segment.
    """
    if hash_bytes(data) != digest:
        raise SegmentDamaged(name, "its checksum does not match")
    try:
        header, *lines = [json.loads(line) for line in data.splitlines()]
        if header["clew"] != "segment":
            raise SegmentDamaged(name, f"it is not a segment: {str(header)[:100]}")
        version = FORMAT.check(header["version"], name)
        entries = [Entry.from_json(FORMAT.upgrade(line, version)) for line in lines]
        first, last = int(header["from_seq"]), int(header["to_seq"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SegmentDamaged(name, f"it cannot be read: {error}") from None
    if not entries or [entry.seq for entry in entries] != list(range(first, last + 1)):
        raise SegmentDamaged(name, f"it does not hold each of the entries {first} to {last} once")
    return entries


def split(entries: Iterable[Entry], max_bytes: int) -> list[list[Entry]]:
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
    # Not RFC 8785: it rounds integers beyond 2^53, and decoding must return the same value.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
