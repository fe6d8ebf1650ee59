"""`clew top`: the live sessions of a namespace, in a table that is kept up to date."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import options, reach, show
from clew.cli.failures import exit_on_error, format_message
from clew.cli.listing import make_cells, make_table
from clew.cli.options import Address, AsJson, Namespace
from clew.contract import TASK_QUEUE
from clew.contract.lists import SessionSummary
from clew.errors import ClewError
from clew.session.connection import Clew

REFRESH_SECONDS = 2.0
"""Seconds between two looks at the server."""
LIVE = 'ExecutionStatus = "Running"'
_OTHER_LINES = 6
"""Lines around the sessions: the totals, those of the table, the number of the others."""
_ORDER = ("awaiting_approval", "awaiting_external", "failed", "working", "idle")
"""The statuses in the order of the table: first those that wait for somebody."""


def top(
    *,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Largest number of sessions to read.")] = 1000,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
) -> None:
    """Watch all live sessions: what each is doing, its tokens and its cost. `q` or Ctrl-C ends.

    Without a terminal, or with --json, it prints them once.
    """
    target = options.make_target(address, namespace, TASK_QUEUE)

    async def work() -> None:
        clew, to = await reach.connect(target), show.make_console()
        if as_json:
            rows = await read_live(clew, limit)
            show.print_document({"sessions": [summary.as_dict() for summary in rows]})
        elif not to.is_terminal:
            for summary in await read_live(clew, limit):
                cells = (show.strip_controls(cell).replace("\t", " ") for cell in make_cells(summary))
                show.print_text(to, Text("\t".join(cells)))
        else:
            await _watch(clew, to, limit)

    with exit_on_error(as_json):
        options.run(work())


COMMANDS = (top,)


async def read_live(clew: Clew, limit: int) -> list[SessionSummary]:
    """Read the live sessions: those that wait for somebody first, and of the same status the most recent first."""
    rows: list[SessionSummary] = []
    async with aclosing(clew.sessions(query=LIVE)) as listed:
        async for summary in listed:
            rows.append(summary)
            if len(rows) == limit:
                break
    rows.sort(key=lambda summary: summary.active_at or summary.started_at or "", reverse=True)
    return sorted(rows, key=_rank)


def format_sessions(
    rows: Sequence[SessionSummary], width: int, height: int, *, at: datetime, problem: str = ""
) -> RenderableType:
    """Format the sessions in so many columns and at most so many lines: totals, and a table of the first sessions."""
    counts = Counter((summary.status or "unknown").replace("_", " ") for summary in rows)
    totals = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    title = show.make_text(
        (f"{len(rows)} live session{'' if len(rows) == 1 else 's'}", "bold"),
        f": {totals}" if totals else "",
        (f"  {at:%H:%M:%S}  q ends", "dim"),
        (f"  {problem}", "bold red"),
    )
    title.no_wrap, title.overflow = True, "ellipsis"
    room = max(height - _OTHER_LINES, 1)
    rest = [Text(f"{len(rows) - room} more", "dim")] if len(rows) > room else []
    return Group(title, make_table(rows[:room], width), *rest)


def _rank(summary: SessionSummary) -> int:
    return _ORDER.index(summary.status) if summary.status in _ORDER else len(_ORDER)


async def _watch(clew: Clew, to: Console, limit: int) -> None:
    """Keep the table up to date until a key ends it."""
    ended = asyncio.Event()
    rows: list[SessionSummary] = await read_live(clew, limit)
    problem = ""
    with _read_keys(ended), Live(console=to, screen=True, auto_refresh=False) as display:
        while not ended.is_set():
            now = datetime.now().astimezone()
            table = format_sessions(rows, to.width, to.height, at=now, problem=problem)
            display.update(table, refresh=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), REFRESH_SECONDS)
                break
            try:
                rows, problem = await read_live(clew, limit), ""
            except (ClewError, TemporalError) as error:
                problem = format_message(error)


@contextmanager
def _read_keys(ended: asyncio.Event) -> Iterator[None]:
    """Set `ended` when a key is pressed that ends the command."""
    from prompt_toolkit.input import create_input  # noqa: PLC0415 - no other command of the module needs it
    from prompt_toolkit.keys import Keys  # noqa: PLC0415

    keys = create_input()

    def read() -> None:
        if any(press.key in ("q", "Q", Keys.ControlC, Keys.ControlD, Keys.Escape) for press in keys.read_keys()):
            ended.set()

    with keys.raw_mode(), keys.attach(read):
        yield
