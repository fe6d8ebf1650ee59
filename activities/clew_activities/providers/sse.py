"""Reads server-sent events as WHATWG's standard says, from the pieces of a body. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

Two things differ from the standard, for servers that do not follow it: the end of the body ends its last event, and a
line that begins like an error or like JSON is data.
"""

from __future__ import annotations

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseParser:
    """Reads the events of one body. Time and memory are linear in its length; the caller bounds it."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._is_first = True
        self._ended_in_return = False
        self._event = ""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """Take the next piece of the body. Returns the name and the data of each event that it completes."""
        if self._ended_in_return and piece:
            # The line feed of a line end that is split over two pieces.
            self._ended_in_return = False
            piece = piece.removeprefix(b"\n")
        lines = piece.splitlines()
        rest = lines.pop() if lines and not piece.endswith((b"\n", b"\r")) else b""
        if not lines:
            self._line.append(rest)
            return []
        self._ended_in_return = piece.endswith(b"\r")
        if self._line:
            lines[0] = b"".join((*self._line, lines[0]))
        self._line = [rest] if rest else []
        return self._read_lines(lines)

    def finish(self) -> list[tuple[str, str]]:
        """Take the end of the body. Returns the last event if no empty line has followed it."""
        line, self._line = b"".join(self._line), []
        return self._read_lines([line, b""])

    def _read_lines(self, lines: list[bytes]) -> list[tuple[str, str]]:
        if self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        events: list[tuple[str, str]] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif not line:
                if data:
                    events.append((self._event or "message", b"\n".join(data).decode("utf-8", "replace")))
                    data.clear()
                self._event = ""
            elif line.startswith(b"{"):
                # Servers between send JSON as it is.
                data.append(line)
            else:
                field, _, value = line.partition(b":")
                if field == b"event":
                    self._event = value.removeprefix(b" ").decode("utf-8", "replace")
                elif field == b"data":
                    data.append(b"")
                elif field == b"error":
                    # llama.cpp has sent errors in a field of their own.
                    self._event = "error"
                    data.append(value)
        return events
