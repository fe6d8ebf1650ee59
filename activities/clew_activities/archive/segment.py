"""Segments: runs of entries as immutable objects, named by their SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from clew.thread.entries import Entry
from clew_activities.archive.errors import SegmentDamaged


def hash_bytes(data: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits: the name of an immutable object."""
    return hashlib.sha256(data).hexdigest()


def encode(entries: Sequence[Entry]) -> bytes:
    """Consecutive entries as JSON lines: a header, then one entry a line. Equal entries give equal bytes.

    Raises:
        ValueError: there is no entry, or one holds what is not JSON.
    """
    if not entries:
        raise ValueError("a segment holds at least one entry")
    header = {"clew": "segment", "version": 1, "from_seq": entries[0].seq, "to_seq": entries[-1].seq}
    return b"".join([_line(header), *(_line(entry.as_json()) for entry in entries)])


def decode(data: bytes, digest: str, name: str) -> list[Entry]:
    """The entries of a segment.

    Raises:
        SegmentDamaged: the bytes are not those that `digest` names, or no segment; says which object.
    """
    if hash_bytes(data) != digest:
        raise SegmentDamaged(name, "its checksum does not match")
    try:
        header, *lines = [json.loads(line) for line in data.splitlines()]
        if header["clew"] != "segment" or header["version"] != 1:
            raise SegmentDamaged(name, f"it is not a segment of version 1: {str(header)[:100]}")
        entries = [Entry.from_json(line) for line in lines]
        first, last = int(header["from_seq"]), int(header["to_seq"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SegmentDamaged(name, f"it cannot be read: {error}") from None
    if not entries or [entry.seq for entry in entries] != list(range(first, last + 1)):
        raise SegmentDamaged(name, f"it does not hold each of the entries {first} to {last} once")
    return entries


def split(entries: Iterable[Entry], max_bytes: int) -> list[list[Entry]]:
    """A run of entries in pieces whose segments stay about under `max_bytes`; an entry is never divided.

    The same entries are split at the same places, however often.
    """
    pieces: list[list[Entry]] = []
    size = 0
    for entry in entries:
        length = len(_line(entry.as_json()))
        if not pieces or size + length > max_bytes:
            pieces.append([])
            size = 0
        pieces[-1].append(entry)
        size += length
    return pieces


def _line(value: dict[str, Any]) -> bytes:
    # Not RFC 8785: it would round integers beyond 2^53, and what comes back must be what went in.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
