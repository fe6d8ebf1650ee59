"""`clew follow`: watch a session. It costs the session nothing, and nothing is typed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live as LiveDisplay
from rich.text import Text

from clew.cli import options, reach, show
from clew.cli.chat.rendering import Painter
from clew.cli.chat.screen import Screen
from clew.cli.failures import exit_on_error
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.contract import TASK_QUEUE
from clew.session.events import EntryCommitted, SessionEvent, TextAdded, ThinkingAdded, ToolProgressed
from clew.session.session import Session

FRAME_SECONDS = 0.125
"""Seconds between two frames of the spinner."""


def follow(
    session: SessionId,
    *,
    from_seq: Annotated[
        int | None,
        typer.Option("--from-seq", "--from", metavar="SEQ", min=0, help="Seq of the first entry. Default: the next."),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Watch a session until it is closed: its messages, tools and replies as they grow. Ctrl-C ends."""
    target = options.make_target(address, namespace, task_queue)

    async def work() -> None:
        clew = await reach.use_task_queue(await reach.connect(target), session)
        to = show.make_console()
        if as_json or not to.is_terminal:
            await _print_events(clew.session(session), from_seq, as_json)
        else:
            await _Watch(to, session).run(clew.session(session), from_seq)

    with exit_on_error(as_json):
        options.run(work())


COMMANDS = (follow,)


async def _print_events(session: Session, from_seq: int | None, as_json: bool) -> None:
    """Print an event a line: as JSON, or as text without the parts of replies that grow."""
    async with aclosing(session.follow(from_seq)) as events:
        async for event in events:
            if as_json:
                show.print_document(event.as_dict(), in_lines=True)
            elif not isinstance(event, TextAdded | ThinkingAdded | ToolProgressed):
                print(_format_line(event), flush=True)  # noqa: T201


def _format_line(event: SessionEvent) -> str:
    """Format an event as a line: an entry as `clew entries` prints it, another one by its type and fields."""
    if isinstance(event, EntryCommitted):
        return "\t".join(show.format_row(event.entry))
    fields = {name: value for name, value in event.as_dict().items() if name not in ("type", "run_id")}
    return "\t".join(["", "", event.type, fields.pop("request_id", ""), "", show.format_fields(fields)])


class _Watch:
    """Shows a session on a terminal."""

    def __init__(self, to: Console, session_id: str) -> None:
        self._to = to
        self._session_id = session_id
        self._screen = Screen()
        self._tick = 0

    async def run(self, session: Session, from_seq: int | None) -> None:
        """Show the session's events until it is closed."""
        with LiveDisplay(console=self._to, auto_refresh=False, transient=True) as display:
            turning = asyncio.ensure_future(self._turn(display))
            try:
                async with aclosing(session.follow(from_seq)) as events:
                    async for event in events:
                        for block in self._screen.take(event):
                            display.console.print(Text.from_ansi(self._painter.paint_block(block)), soft_wrap=True)
                        self._draw(display)
            finally:
                turning.cancel()
                with suppress(asyncio.CancelledError):
                    await turning

    @property
    def _painter(self) -> Painter:
        return Painter(self._to.width, self._to.color_system, self._session_id)

    async def _turn(self, display: LiveDisplay) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._tick += 1
            self._draw(display)

    def _draw(self, display: LiveDisplay) -> None:
        rows = max(self._to.height - 2, 1)
        painted = self._painter.paint_live(self._screen.live, rows=rows, tick=self._tick, now=datetime.now(UTC))
        display.update(Text.from_ansi(painted), refresh=True)
