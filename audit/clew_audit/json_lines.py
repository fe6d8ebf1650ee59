"""Files of JSON Lines with a checksum: a header, the rows, and a last line with their number and a SHA-256.

    {"clew": "export", "version": 1, ...}
    ...
    {"clew": "end", "lines": 2, "sha256": "..."}

With encryption each row is `{"sealed": "..."}`, in base64 and bound to its place in the file; the first and the last
line stay readable. The checksum covers all bytes before the last line. Reading and writing hold one line in memory. A
line has at most `MAX_LINE_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from clew_workflows.contract.errors import ClewError, UnknownKey
from clew_workflows.encryption import NO_ENCRYPTION, Changed, Sealer
from clew_workflows.values import Format

MAX_LINE_BYTES = 160 * 1024 * 1024
"""Largest line, in bytes. The history of a workflow run has at most 50 MB, and a third more in base64. A stored tool
result has at most 16 MiB, six times as much if JSON escapes every character, and a third more if it is encrypted."""


_SEALED = "sealed"


class FileDamaged(ClewError):
    """A file was changed since it was written, or was not written to its end."""


def encode_line(value: Mapping[str, Any]) -> bytes:
    """Encode a JSON value as a line. The order of members is kept, and integers of any size are exact."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


class LineWriter:
    """Writes a file. Without `end` the file is incomplete, which its readers detect."""

    def __init__(
        self, file: BinaryIO, format_: Format, header: Mapping[str, Any], *, sealer: Sealer = NO_ENCRYPTION
    ) -> None:
        self.count = 0
        self._sealer = sealer
        self._name = _name_file(format_, header)
        self._file = file
        self._checksum = hashlib.sha256()
        self._write({"clew": format_.name, "version": format_.version, **header})

    def write_row(self, value: Mapping[str, Any]) -> None:
        """Write a row."""
        if self._sealer.is_on:
            sealed = self._sealer.seal(encode_line(value), f"{self._name}/{self.count}")
            value = {_SEALED: b64encode(sealed).decode()}
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
    """Reads a file of one format, line by line. A line of more than `max_line_bytes` is an error."""

    def __init__(
        self, file: BinaryIO, format_: Format, *, max_line_bytes: int = MAX_LINE_BYTES, sealer: Sealer = NO_ENCRYPTION
    ) -> None:
        self._sealer = sealer
        self._lines = _read_lines(file, max_line_bytes)
        self._checksum = hashlib.sha256()
        self._format = format_
        self.header, self._version = self._read_header()

    def read_rows(self) -> Iterator[Any]:
        """Yield every row. The checksum is verified after the last one: until then a row may be damaged.

        Raises:
            FileDamaged: A row is not JSON; or, after the last row, the number or the checksum does not match.
            UnknownKey: A row is encrypted with a key that this process does not have.
        """
        count = 0
        for data in self._lines:
            row = _parse(data, f"line {count + 2}")
            if isinstance(row, dict) and row.get("clew") == "end":
                self._check_end(row, count)
                return
            self._checksum.update(data)
            yield self._format.upgrade(self._unseal(row, count), self._version)
            count += 1
        raise FileDamaged(f"the file ends after {count} rows without its last line: it was not written to its end")

    def _unseal(self, row: Any, number: int) -> Any:
        if not isinstance(row, dict) or row.keys() != {_SEALED}:
            return row
        try:
            data = b64decode(row[_SEALED], validate=True)
            unsealed = self._sealer.unseal(data, f"{_name_file(self._format, self.header)}/{number}")
        except Changed as error:
            raise FileDamaged(f"line {number + 2}: {error}") from None
        except UnknownKey as error:
            raise UnknownKey(f"line {number + 2}: {error.message}") from None
        except (TypeError, ValueError) as error:
            raise FileDamaged(f"line {number + 2} cannot be decrypted: {error}") from None
        return _parse(unsealed, f"line {number + 2}")

    def _read_header(self) -> tuple[dict[str, Any], int]:
        data = next(self._lines, b"")
        header = _parse(data, "the first line")
        if not isinstance(header, dict) or header.get("clew") != self._format.name:
            raise FileDamaged(f"this is not a file of the kind {self._format.name!r}: its first line does not say so")
        try:
            version = self._format.check(header.get("version"), "the file")
        except ValueError as error:
            raise FileDamaged(str(error)) from None
        self._checksum.update(data)
        return header, version

    def _check_end(self, end: dict[str, Any], count: int) -> None:
        if end.get("lines") != count:
            raise FileDamaged(f"the file has {count} rows, but its last line says {end.get('lines')}")
        if end.get("sha256") != self._checksum.hexdigest():
            raise FileDamaged("the file's checksum does not match: it was changed since it was written")
        if next(self._lines, None) is not None:
            raise FileDamaged("the file continues after its last line")


def _name_file(format_: Format, header: Mapping[str, Any]) -> str:
    return f"{format_.name}/{header.get('session_id')}"


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
