"""A terminal for `prompt_toolkit` in this process: keys are typed, and the screen is read."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from clew import Clew, Session
from clew.cli.chat.shell import Shell
from clew.cli.reach import Opened
from tests.support.command_line import Emulator
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS

ROWS, COLUMNS = 40, 100
ENTER, ESCAPE, CTRL_C, CTRL_D = "\r", "\x1b", "\x03", "\x04"


class _Painted(io.StringIO):
    """A stream whose text stands on a screen."""

    def __init__(self) -> None:
        super().__init__()
        self.emulator = Emulator(COLUMNS)
        self.raw = ""

    def write(self, text: str) -> int:
        self.raw += text
        self.emulator.feed(text)
        return len(text)


class TypingTerminal:
    """A chat that runs in this process."""

    def __init__(self, keys: PipeInput, painted: _Painted, chatting: asyncio.Task[int]) -> None:
        self._keys = keys
        self._painted = painted
        self._chatting = chatting

    @property
    def screen(self) -> str:
        """The screen, with all that has scrolled."""
        return self._painted.emulator.text

    @property
    def raw(self) -> str:
        """All output, with its control sequences."""
        return self._painted.raw

    def paste(self, text: str) -> None:
        """Paste a text, as a terminal does that marks it."""
        self._keys.send_text(f"\x1b[200~{text}\x1b[201~")

    def press(self, keys: str) -> None:
        """Press keys."""
        self._keys.send_text(keys)

    async def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until a text stands so many times on the screen."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self.screen.count(text) < times:
                    if self._chatting.done():
                        self._chatting.result()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{text!r} does not appear on\n{self.screen}") from None

    async def wait_for_end(self) -> int:
        """Wait until the chat has ended; returns its exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._chatting


@asynccontextmanager
async def open_chat(stack: Stack, session: Session, *, clew: Clew | None = None) -> AsyncIterator[TypingTerminal]:
    """Open a chat of a session that exists."""
    painted = _Painted()
    output = Vt100_Output(painted, lambda: Size(rows=ROWS, columns=COLUMNS), term="xterm", enable_cpr=False)
    opened = Opened(session, await session.status(), resumed=True)
    with create_pipe_input() as keys, create_app_session(input=keys, output=output):
        shell = Shell(clew or stack.clew, opened, history=InMemoryHistory(), input=keys, output=output)
        chatting = asyncio.ensure_future(shell.run())
        try:
            yield TypingTerminal(keys, painted, chatting)
        finally:
            chatting.cancel()
            await asyncio.gather(chatting, return_exceptions=True)
