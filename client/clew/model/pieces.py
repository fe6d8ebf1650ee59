"""Pieces: a text in parts of about the same size. Each is counted once, and that tells what some of them cost."""

from __future__ import annotations

PIECE_BYTES = 256
"""A piece has no more bytes of UTF-8, unless there would be too many of them."""
MAX_PIECES = 128


def find_piece_starts(data: bytes) -> list[int]:
    """Where the pieces of a text of UTF-8 begin: always between characters, and at 0 first."""
    number = max(min(-(-len(data) // PIECE_BYTES), MAX_PIECES), 1)
    return [_find_character_start(data, place * len(data) // number) for place in range(number)]


def split(text: str) -> list[str]:
    """The pieces of a text; together they are the text."""
    data = text.encode()
    starts = find_piece_starts(data)
    return [data[start:end].decode() for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def _find_character_start(data: bytes, offset: int) -> int:
    while offset and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset
