"""Files of JSON Lines that say when they are damaged: a header, the rows, and a last line that counts and hashes.

    {"clew": "export", "version": 1, ...}
    ...
    {"clew": "end", "lines": 2, "sha256": "..."}

The last line speaks of all the bytes before it. Neither side holds more than one line in memory, and no line has more
than `MAX_LINE_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from clew.errors import ClewError

VERSION = 1
MAX_LINE_BYTES = 128 * 1024 * 1024
"""Largest line, in bytes. The history of a workflow run has 50 MB at most, a third more in base64; a stored tool
result has 16 MiB, six times as much where JSON escapes every character."""


class FileDamaged(ClewError):
    """A file is not what was written, or was not written to its end."""


def encode_line(value: Mapping[str, Any]) -> bytes:
    """A JSON value as a line; equal values give equal bytes, and integers of any size stay what they are."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


class LineWriter:
    """A file of a kind in the making; without `end` it is not whole."""

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
    """A file of a kind, read from its beginning to its end. No line has more than `max_line_bytes`."""

    def __init__(self, file: BinaryIO, kind: str, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._lines = _lines(file, max_line_bytes)
        self._checksum = hashlib.sha256()
        self._kind = kind
        self.header = self._header()

    def read_rows(self) -> Iterator[Any]:
        """Every row. None of them is to be trusted before the last one has been given.

        Raises:
            FileDamaged: a row is no JSON; or, after the last one, the file is not what was written.
        """
        count = 0
        for data in self._lines:
            row = _parsed(data, f"line {count + 2}")
            if isinstance(row, dict) and row.get("clew") == "end":
                self._check_end(row, count)
                return
            self._checksum.update(data)
            count += 1
            yield row
        raise FileDamaged(f"it ends after {count} rows without its last line: it was not written to its end")

    def _header(self) -> dict[str, Any]:
        data = next(self._lines, b"")
        header = _parsed(data, "the first line")
        if not isinstance(header, dict) or header.get("clew") != self._kind:
            raise FileDamaged(f"it is not a file of the kind {self._kind!r}: its first line does not say so")
        if header.get("version") != VERSION:
            raise FileDamaged(f"it is of version {header.get('version')!r}, and this program reads version {VERSION}")
        self._checksum.update(data)
        return header

    def _check_end(self, end: dict[str, Any], count: int) -> None:
        if end.get("lines") != count:
            raise FileDamaged(f"it holds {count} rows, and its last line speaks of {end.get('lines')}")
        if end.get("sha256") != self._checksum.hexdigest():
            raise FileDamaged("its checksum does not match: it has been changed since it was written")
        if next(self._lines, None) is not None:
            raise FileDamaged("it goes on after its last line")


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    number = 0
    while data := file.readline(max_bytes + 1):
        number += 1
        if len(data) > max_bytes:
            raise FileDamaged(f"line {number} has more than {max_bytes} bytes")
        yield data


def _parsed(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileDamaged(f"{what} is not JSON: {str(error)[:200]}") from None
