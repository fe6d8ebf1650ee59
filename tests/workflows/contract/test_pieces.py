"""Texts in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_workflows.contract.tokens import MAX_PIECES, PIECE_BYTES, find_piece_starts, split


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=2000), st.integers(1, 40))
def test_pieces_are_the_text(text: str, times: int) -> None:
    """Together they are all of it, they are of about the same size, and there are not too many."""
    pieces = split(text * times)
    assert "".join(pieces) == text * times
    assert 1 <= len(pieces) <= MAX_PIECES
    sizes = [len(piece.encode()) for piece in pieces]
    assert max(sizes) - min(sizes) <= 7
    assert find_piece_starts((text * times).encode())[0] == 0


@pytest.mark.parametrize(("size", "pieces"), [(0, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2), (65_536, MAX_PIECES)])
def test_how_many(size: int, pieces: int) -> None:
    """A short text is one piece."""
    assert len(split("x" * size)) == pieces
