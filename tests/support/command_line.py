"""Run the command `clew` as a user does: as a process, its output piped or on a terminal."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import sysconfig
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.command_server import Command, CommandServer
from tests.support.waiting import PATIENCE_SECONDS

KEY_SECONDS = 2.0
"""Seconds in which a command takes a key."""
COLUMNS = 100
_COMMAND = (sys.executable, "-W", "error", "-m", "clew.cli")
# Make the pseudo-terminal the controlling terminal, so that a Ctrl-C typed there becomes a signal.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
_WHERE = b"\x1b[6n"
"""The question where the cursor is."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        code: Its exit code.
        out: Its output.
        err: Its error output.
    """

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def make_environment(address: str | None = None, **settings: str) -> dict[str, str]:
    """Make an environment for the command: this process's own, but with the given configuration only."""
    ours = ("TEMPORAL_", "CLEW_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # `clew` is on the PATH, as in an activated environment.
    inherited["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), inherited.get("PATH", os.defpath)])
    where = {"TEMPORAL_ADDRESS": address} if address else {}
    # Ignore a configuration file in the home directory, and keep no history there.
    ignored = {"TEMPORAL_CONFIG_FILE": os.devnull, "XDG_STATE_HOME": os.devnull}
    return {**inherited, **ignored, "TERM": "xterm-256color", **where, **settings}


def hide_worker_extra(folder: Path) -> dict[str, str]:
    """Make settings for processes that cannot import the libraries of the extra `worker`."""
    return hide_modules(
        folder, "bpe_openai", "genai_prices", "httpx", "httpx_sse", "jsonschema_rs", "obstore", "tiktoken"
    )


def hide_modules(folder: Path, *modules: str) -> dict[str, str]:
    """Make settings for processes that cannot import some modules. The folder is theirs."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


async def run_clew(
    *arguments: str, address: str | None = None, stdin: str | bytes = b"", **settings: str
) -> CommandResult:
    """Run the command with its output piped."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    async with asyncio.timeout(PATIENCE_SECONDS):
        if any(name.startswith("PYTHON") for name in settings):  # the interpreter reads them when it starts
            process = await start_command(*arguments, address=address, **settings)
            out, err = await process.communicate(data)
            code = await process.wait()
        else:
            code, out, err = await _get_server().run(arguments, make_environment(address, **settings), data)
    return CommandResult(code, out.decode(), err.decode())


@cache
def _get_server() -> CommandServer:
    return CommandServer(make_environment())


async def start_command(*arguments: str, address: str | None = None, **settings: str) -> asyncio.subprocess.Process:
    """Start the command with its output piped."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(*_COMMAND, *arguments), stdin=pipe, stdout=pipe, stderr=pipe, env=make_environment(address, **settings)
    )


class Terminal:
    """The command on a pseudo-terminal: types input and reads the screen."""

    def __init__(self, master: int, process: asyncio.subprocess.Process | Command) -> None:
        self._master = master
        self._process = process
        self._news = asyncio.Event()
        self._seen = 0
        self._emulator = Emulator(COLUMNS)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        """All output, with its control sequences."""

    @property
    def screen(self) -> str:
        """All output, without colours and cursor movements."""
        return _ESCAPES.sub("", self.raw)

    async def wait_for(self, text: str) -> str:
        """Wait for a text after the last awaited one; returns the output between the two."""
        try:
            # One limit for the loop: a progress display must not make this wait for ever.
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (at := self.screen.find(text, self._seen)) < 0:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} does not appear after {self.screen[self._seen :]!r}") from None
        between = self.screen[self._seen : at]
        self._seen = at + len(text)
        return between

    async def wait_until_shown(self, text: str) -> None:
        """Wait until a text stands on the screen, however the program has painted it."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while text not in self._emulator.text:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} does not appear on\n{self._emulator.text}") from None

    def resize(self, columns: int) -> None:
        """Change the width of the terminal."""
        _set_size(self._master, columns)
        self._emulator.columns = columns
        self._process.send_signal(signal.SIGWINCH)

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._master, text.encode())

    async def leave(self) -> int:
        """Type Ctrl-D until the command ends; returns its exit code.

        Before the first prompt, and while text is printed above it, the terminal itself takes the key.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self.type("\x04")
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEY_SECONDS):
                        return await self._process.wait()

    async def wait_for_end(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._process.wait()

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        if _WHERE in data:  # as every terminal does: the cursor is in the first row
            os.write(self._master, b"\x1b[1;1R")
        # Two reads may split a character.
        text = self._decoder.decode(data)
        self._emulator.feed(text)
        self.raw += text
        self._news.set()


@asynccontextmanager
async def open_terminal(
    *arguments: str, address: str | None = None, anew: bool = False, **settings: str
) -> AsyncIterator[Terminal]:
    """Run the command on a pseudo-terminal of `COLUMNS` columns.

    `anew`: start an interpreter for it, as a shell does. That takes half a second of computing.
    """
    master, slave = pty.openpty()
    _set_size(slave, COLUMNS)
    env = make_environment(address, **settings)
    process: asyncio.subprocess.Process | Command
    if anew:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, *_COMMAND, *arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
    else:
        process = await _get_server().start_on_terminal(arguments, env, slave)
    os.close(slave)
    loop = asyncio.get_running_loop()
    shown = Terminal(master, process)
    loop.add_reader(master, shown._read)
    try:
        yield shown
    finally:
        loop.remove_reader(master)
        os.close(master)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


def _set_size(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def read_error(ended: CommandResult) -> tuple[int, str]:
    """Parse the single line on stderr; returns the exit code and the error's type."""
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    word, colon, message = ended.err.partition(": ")
    assert colon
    assert message.strip()
    return ended.code, word


_SEQUENCE = re.compile(
    r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>78]|\x1b[P_][^\x1b]*\x1b\\\\|\x1b\][^\x07]*\x07|(\r|\n|\x08)|([^\x1b\r\n\x08\x07]+)"
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
        # A picture ends with a sequence of its own.
        opened = max(output.rfind("\x1bP"), output.rfind("\x1b_"))
        if opened >= 0 and "\x1b\\" not in output[opened:]:
            start = opened
        elif output.startswith("\x1b\\", start):
            start = -1
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
