"""Damaged files are refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_audit.json_lines import FileDamaged, LineReader, LineWriter


def write_lines(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    writer = LineWriter(file, "test", {"name": "n"})
    for row in rows:
        writer.write_row(row)
    writer.end()
    return file.getvalue()


def read(data: bytes, **bounds: int) -> list[Any]:
    return list(LineReader(io.BytesIO(data), "test", **bounds).read_rows())


ROWS: list[dict[str, Any]] = [{"n": 2**60}, {"text": "a\u2028b", "deep": [{}]}, {}]


def test_what_was_written_is_read() -> None:
    """Rows and header, integers of any size."""
    assert read(write_lines(ROWS)) == ROWS
    assert LineReader(io.BytesIO(write_lines([])), "test").header["name"] == "n"


@given(st.data())
def test_a_byte_that_differs_is_noticed(data: st.DataObject) -> None:
    """Any change of any byte is detected."""
    content = write_lines(ROWS)
    index = data.draw(st.integers(0, len(content) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[index]))
    with pytest.raises(FileDamaged):
        read(bytes([*content[:index], other, *content[index + 1 :]]))


def test_a_file_that_ends_too_soon_or_too_late_is_noticed() -> None:
    """Truncate anywhere, or with something after its end."""
    content = write_lines(ROWS)
    for end in range(len(content) - 1):
        with pytest.raises(FileDamaged):
            read(content[:end])
    with pytest.raises(FileDamaged, match="continues after its last line"):
        read(content + b"{}\n")


def test_a_line_without_an_end_is_refused_before_it_is_read_whole() -> None:
    """The error has the line's number."""
    with pytest.raises(FileDamaged, match="line 2 has more than 100 bytes"):
        read(write_lines([{"text": "x" * 1000}]), max_line_bytes=100)
    with pytest.raises(FileDamaged, match="line 1 has more than 100 bytes"):
        read(b"x" * 1000, max_line_bytes=100)
