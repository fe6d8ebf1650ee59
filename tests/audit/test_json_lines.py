"""Damaged files are refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import NewerVersion, UnknownKey
from clew_audit.json_lines import FileDamaged, LineReader, LineWriter, encode_line
from clew_workflows.encryption import NO_ENCRYPTION, Sealer
from clew_workflows.values import Format
from tests.support.encrypted import make_encryption

TEST = Format("test")


def write_lines(rows: list[dict[str, Any]], sealer: Sealer = NO_ENCRYPTION) -> bytes:
    file = io.BytesIO()
    writer = LineWriter(file, TEST, {"name": "n"}, sealer=sealer)
    for row in rows:
        writer.write_row(row)
    writer.end()
    return file.getvalue()


def read(data: bytes, **options: Any) -> list[Any]:
    return list(LineReader(io.BytesIO(data), TEST, **options).read_rows())


ROWS: list[dict[str, Any]] = [{"n": 2**60}, {"text": "a\u2028b", "deep": [{}]}, {}]


def test_what_was_written_is_read() -> None:
    """Rows and header, integers of any size."""
    assert read(write_lines(ROWS)) == ROWS
    assert LineReader(io.BytesIO(write_lines([])), TEST).header["name"] == "n"


@given(st.data())
def test_a_byte_that_differs_is_noticed(data: st.DataObject) -> None:
    """Any change of any byte is detected."""
    content = write_lines(ROWS)
    index = data.draw(st.integers(0, len(content) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[index]))
    with pytest.raises((FileDamaged, NewerVersion)):
        read(bytes([*content[:index], other, *content[index + 1 :]]))


def test_a_file_of_a_newer_version_is_refused_by_its_version() -> None:
    """The message names both versions. A version that never was is damage."""
    content = write_lines(ROWS)
    with pytest.raises(NewerVersion, match="the file is of version 2, and this version of Clew reads 1: upgrade"):
        read(content.replace(b'"version":1', b'"version":2'))
    with pytest.raises(FileDamaged, match="is of version 0"):
        read(content.replace(b'"version":1', b'"version":0'))


def test_the_rows_of_an_older_version_are_upgraded() -> None:
    """Each row passes the steps from its file's version to the newest, once."""
    newest = Format("test", 3, (lambda row: {**row, "two": 2}, lambda row: {**row, "three": row.get("two")}))
    content = write_lines([{"n": 1}])
    reader = LineReader(io.BytesIO(content), newest)
    assert list(reader.read_rows()) == [{"n": 1, "two": 2, "three": 2}]
    content = content.replace(b'"version":1', b'"version":2')
    rows = LineReader(io.BytesIO(content), newest).read_rows()
    assert next(rows) == {"n": 1, "three": None}


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


def test_encrypted_rows_stand_in_their_places() -> None:
    """No row is readable, and none can be read in another's place, with any checksum; the key is named."""
    sealer = make_encryption("k1").sealer
    content = write_lines([{"text": "a sentence"}, {"text": "b sentence"}], sealer)
    assert b"sentence" not in content
    assert read(content, sealer=make_encryption("k2", "k1").sealer) == [
        {"text": "a sentence"},
        {"text": "b sentence"},
    ]
    with pytest.raises(UnknownKey, match=r"line 2: .*'k1', which this process does not have"):
        read(content)
    first, second = [json.loads(line) for line in content.splitlines()[1:3]]
    assert encode_line(first) in content
    with pytest.raises(FileDamaged, match=r"line 2: .*was changed"):
        read(write_lines([second, first]), sealer=sealer)
    for broken in ({"sealed": 1}, {"sealed": "!"}):
        with pytest.raises(FileDamaged, match="line 2 cannot be decrypted"):
            read(write_lines([broken]), sealer=sealer)
