"""Files of JSON Lines with a checksum: a header, the rows, and a last line with their number and a SHA-256.

    {"clew": "export", "version": 1, ...}
    ...
    {"clew": "end", "lines": 2, "sha256": "..."}

The checksum covers all bytes before the last line. Reading and writing hold one line in memory. A line has at most
`MAX_LINE_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from clew.errors import ClewError

VERSION = 1
MAX_LINE_BYTES = 128 * 1024 * 1024
"""Largest line, in bytes. The history of a workflow run has at most 50 MB, and a third more in base64. A stored tool
result has at most 16 MiB, and six times as much if JSON escapes every character."""


class FileDamaged(ClewError):
    """A file was changed since it was written, or was not written to its end."""


def encode_line(value: Mapping[str, Any]) -> bytes:
    """Encode a JSON value as a line. Equal values give equal bytes, and integers of any size are exact."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


class LineWriter:
    """Writes a file. Without `end` the file is incomplete, which its readers detect."""

    def __init__(self, file: BinaryIO, kind: str, header: Mapping[str, Any]) -> None:
        self.count = 0
        self._file = file
        self._checksum = hashlib.sha256()
        self._write({"clew": kind, "version": VERSION, **header})

    def write_row(self, value: Mapping[str, Any]) -> None:
        """Write a row."""
        self._write(value)
        self.count += 1

    def end(self) -> None:
        """Write the last line."""
        self._write({"clew": "end", "lines": self.count, "sha256": self._checksum.hexdigest()})
        self._file.flush()

    def _write(self, value: Mapping[str, Any]) -> None:
        data = encode_line(value)
        self._checksum.update(data)
        self._file.write(data)


class LineReader:
    """Reads a file of one kind, line by line. A line of more than `max_line_bytes` is an error."""

    def __init__(self, file: BinaryIO, kind: str, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._lines = _read_lines(file, max_line_bytes)
        self._checksum = hashlib.sha256()
        self._kind = kind
        self.header = self._read_header()

    def read_rows(self) -> Iterator[Any]:
        """Yield every row. The checksum is verified after the last one: until then a row may be damaged.

        Raises:
            FileDamaged: A row is not JSON; or, after the last row, the number or the checksum does not match.
        """
        count = 0
        for data in self._lines:
            row = _parse(data, f"line {count + 2}")
            if isinstance(row, dict) and row.get("clew") == "end":
                self._check_end(row, count)
                return
            self._checksum.update(data)
            count += 1
            yield row
        raise FileDamaged(f"the file ends after {count} rows without its last line: it was not written to its end")

    def _read_header(self) -> dict[str, Any]:
        data = next(self._lines, b"")
        header = _parse(data, "the first line")
        if not isinstance(header, dict) or header.get("clew") != self._kind:
            raise FileDamaged(f"this is not a file of the kind {self._kind!r}: its first line does not say so")
        if header.get("version") != VERSION:
            raise FileDamaged(
                f"the file is of version {header.get('version')!r}, and this version of Clew reads version {VERSION}"
            )
        self._checksum.update(data)
        return header

    def _check_end(self, end: dict[str, Any], count: int) -> None:
        if end.get("lines") != count:
            raise FileDamaged(f"the file has {count} rows, but its last line says {end.get('lines')}")
        if end.get("sha256") != self._checksum.hexdigest():
            raise FileDamaged("the file's checksum does not match: it was changed since it was written")
        if next(self._lines, None) is not None:
            raise FileDamaged("the file continues after its last line")


def _read_lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    number = 0
    while data := file.readline(max_bytes + 1):
        number += 1
        if len(data) > max_bytes:
            raise FileDamaged(f"line {number} has more than {max_bytes} bytes")
        yield data


def _parse(data: bytes, position: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileDamaged(f"{position} is not JSON: {str(error)[:200]}") from None
