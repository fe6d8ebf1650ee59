"""A terminal's screen: what stands where, after all movements of the cursor."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>78]|\x1b\][^\x07]*\x07|(\r|\n|\x08)|([^\x1b\r\n\x08\x07]+)"
)


class Emulator:
    """The rows of a terminal with unlimited height, so that nothing scrolls away.

    Attributes:
        columns: Its width.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._wraps = True
        self._rest = ""

    @property
    def text(self) -> str:
        """The screen, a line for each row."""
        return "\n".join("".join(row).rstrip() for row in self._rows)

    def feed(self, output: str) -> None:
        """Take output, which may end within a sequence."""
        output = self._rest + output
        start = output.rfind("\x1b")
        self._rest = output[start:] if start >= 0 and not _SEQUENCE.match(output, start) else ""
        for part in _SEQUENCE.finditer(output[: len(output) - len(self._rest)]):
            if part[4]:
                self._write(part[4])
            elif part[3] == "\r":
                self._column = 0
            elif part[3] == "\n":
                self._move(self._row + 1, 0)  # the terminal's driver adds the carriage return
            elif part[3]:
                self._move(self._row, self._column - 1)
            elif part[2]:
                self._obey(part[1], part[2])

    def _write(self, text: str) -> None:
        for character in text:
            if self._column >= self.columns:
                if not self._wraps:
                    continue
                self._move(self._row + 1, 0)
            row = self._rows[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = character
            self._column += 1

    def _move(self, row: int, column: int) -> None:
        self._row, self._column = max(row, 0), max(column, 0)
        self._rows.extend([] for _ in range(self._row + 1 - len(self._rows)))

    def _obey(self, arguments: str, command: str) -> None:
        count = int(arguments) if arguments.isdigit() else 1
        match command:
            case "A":
                self._move(self._row - count, self._column)
            case "B":
                self._move(self._row + count, self._column)
            case "C":
                self._move(self._row, self._column + count)
            case "D":
                self._move(self._row, self._column - count)
            case "J":
                del self._rows[self._row + 1 :]
                del self._rows[self._row][self._column :]
            case "K":
                del self._rows[self._row][self._column :]
            case "h" | "l" if arguments == "?7":
                self._wraps = command == "h"
            case _:
                pass
