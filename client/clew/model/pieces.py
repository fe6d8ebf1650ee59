"""Pieces: a text in parts of about the same size. Their tokens are counted once, so that truncation counts none."""

from __future__ import annotations

PIECE_BYTES = 256
"""Largest piece, in bytes of UTF-8, of a text with at most `MAX_PIECES` pieces."""
MAX_PIECES = 128
"""Most pieces of one text; the pieces of a longer text are larger."""


def find_piece_starts(data: bytes) -> list[int]:
    """Find the offsets at which the pieces of a UTF-8 text begin: 0 first, and always between characters."""
    count = max(min(-(-len(data) // PIECE_BYTES), MAX_PIECES), 1)
    return [_find_character_start(data, number * len(data) // count) for number in range(count)]


def split(text: str) -> list[str]:
    """Split a text into its pieces."""
    data = text.encode()
    starts = find_piece_starts(data)
    return [data[start:end].decode() for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def _find_character_start(data: bytes, offset: int) -> int:
    while offset and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset
