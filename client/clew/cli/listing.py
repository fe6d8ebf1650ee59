"""The commands that list sessions: `sessions`, `top` for the live ones, and what prepares a namespace for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import reach, show
from clew.cli.command import Invocation, command
from clew.cli.failures import FAILED, format_message
from clew.cli.shared_options import option
from clew.session.connection import Clew
from clew.session.namespace import NamespaceSetup
from clew.session.namespace import setup_namespace as register_attributes
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, ListedStatus, SessionSummary

_COLUMNS = ("status", "session", "title", "agent or model", "user", "tokens", "cost", "active")
MIN_TITLE_WIDTH = 10
_STYLES = {
    "idle": "green",
    "working": "cyan",
    "awaiting_approval": "yellow",
    "awaiting_external": "yellow",
    "failed": "bold red",
    "interrupted": "bold red",
}


@command()
def sessions(
    invocation: Invocation,
    *,
    user: Annotated[str | None, option("NAME", "Sessions whose metadata `user` is this.")] = None,
    status: Annotated[ListedStatus | None, option(None, "Sessions in this status.")] = None,
    agent: Annotated[str | None, option("NAME", "Sessions with this agent.")] = None,
    since: Annotated[
        str | None, option("TIME", "Sessions that were active since then: today, 24h, 7d, 2026-11-01.")
    ] = None,
    query: Annotated[
        str | None,
        option(
            "QUERY",
            "A filter in the syntax of Temporal's visibility, such as `ClewCostUsd > 1`. It leaves out sessions "
            "that only the archive has.",
        ),
    ] = None,
    limit: Annotated[int, option("N", "Largest number to print.", min=1)] = 50,
) -> None:
    """List sessions: live ones, the newest first, and then those that only the archive has."""

    async def read(clew: Clew) -> list[SessionSummary]:
        if query is None:
            await clew.check_worker()
        listed = clew.sessions(user=user, status=status, agent=agent, since=since, query=query)
        return await reach.take_sessions(listed, limit + 1)

    rows = invocation.run(read)
    more = len(rows) > limit
    document = {"sessions": [summary.as_dict() for summary in rows[:limit]], **({"more": True} if more else {})}
    invocation.print(document, lambda to: _print_table(to, rows[:limit]))
    if more and not invocation.as_json:
        show.print_remark(f"there are more than {limit}: --limit shows more")


def _print_table(to: Console, rows: list[SessionSummary]) -> None:
    if not to.is_terminal:
        _print_rows(to, rows)
    elif rows:
        to.print(make_table(rows, to.width))
    else:
        to.print("no sessions")


def _print_rows(to: Console, rows: Iterable[SessionSummary]) -> None:
    """Print sessions for another program: one a line, with tabs."""
    for summary in rows:
        show.print_text(to, show.make_text("\t".join(cell.replace("\t", " ") for cell in make_cells(summary))))


def make_table(rows: Sequence[SessionSummary], width: int) -> Table:
    """Make a table of sessions, one a line; titles are shortened so that it is not wider than `width`."""
    lines = [[show.strip_controls(cell) for cell in make_cells(summary)] for summary in rows]
    title = _COLUMNS.index("title")
    widths = [max(len(cell) for cell in column) for column in zip(_COLUMNS, *lines, strict=True)]
    room = max(width - sum(widths) + widths[title] - 3 * len(_COLUMNS), MIN_TITLE_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in ("tokens", "cost", "active") else "left", no_wrap=True)
    for summary, cells in zip(rows, lines, strict=True):
        cells[title] = show.shorten(cells[title], room)
        style = _STYLES.get(summary.status or "", "dim")
        table.add_row(show.make_text((cells[0], style)), *map(show.make_text, cells[1:]))
    return table


def make_cells(summary: SessionSummary) -> list[str]:
    """Make the cells of a session's line in the table."""
    return [
        (summary.status or "unknown").replace("_", " "),
        summary.session_id,
        (summary.title or "").replace("\n", " "),
        summary.agent or summary.model or "",
        summary.user or "",
        "" if summary.tokens is None else show.format_number(summary.tokens),
        "" if summary.cost_usd is None else show.format_dollars(summary.cost_usd),
        _format_age(summary.active_at or summary.started_at),
    ]


def _format_age(time: str | None) -> str:
    """Format how long ago a time was."""
    if time is None:
        return ""
    seconds = max(int((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()), 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


REFRESH_SECONDS = 2.0
"""Seconds between two looks at the server."""
LIVE = 'ExecutionStatus = "Running"'
_OTHER_LINES = 6
"""Lines around the sessions: the totals, those of the table, the number of the others."""
_ORDER = ("awaiting_approval", "awaiting_external", "failed", "working", "idle")
"""The statuses in the order of the table: first those that wait for somebody."""


@command(target=("address", "namespace"))
def top(
    invocation: Invocation, *, limit: Annotated[int, option("N", "Largest number of sessions to read.", min=1)] = 1000
) -> None:
    """Watch all live sessions: what each is doing, its tokens and its cost. `q` or Ctrl-C ends.

    Without a terminal, or with --json, it prints them once.
    """

    async def watch(clew: Clew) -> None:
        to = show.make_console()
        if to.is_terminal and not invocation.as_json:
            await _watch(clew, to, limit)
        else:
            rows = await read_live(clew, limit)
            invocation.print({"sessions": [summary.as_dict() for summary in rows]}, lambda to: _print_rows(to, rows))

    invocation.run(watch)


async def read_live(clew: Clew, limit: int) -> list[SessionSummary]:
    """Read the live sessions: those that wait for somebody first, and of the same status the most recent first."""
    rows = await reach.take_sessions(clew.sessions(query=LIVE), limit)
    rows.sort(key=lambda summary: summary.active_at or summary.started_at or "", reverse=True)
    return sorted(rows, key=lambda row: _ORDER.index(row.status) if row.status in _ORDER else len(_ORDER))


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
                async with asyncio.timeout(REFRESH_SECONDS):
                    await ended.wait()
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


@command(target=("address", "namespace"))
def setup_namespace(invocation: Invocation) -> None:
    """Register the search attributes of sessions in a Temporal namespace. It can be repeated."""
    setup = invocation.run(lambda clew: register_attributes(clew.temporal))
    invocation.print(asdict(setup), lambda to: _print_setup(to, setup))
    if setup.refused or setup.mistyped:
        raise typer.Exit(FAILED)


def _print_setup(to: Console, setup: NamespaceSetup) -> None:
    for line in _describe(setup):
        show.print_text(to, show.make_text(line))


def _describe(setup: NamespaceSetup) -> list[str]:
    lines = []
    if setup.registered:
        lines.append(f"registered in namespace {setup.namespace}: {', '.join(setup.registered)}")
    if setup.present:
        lines.append(f"registered before: {', '.join(setup.present)}")
    if setup.mistyped:
        types = ", ".join(f"{name} ({SEARCH_ATTRIBUTES[name]})" for name in setup.mistyped)
        lines.append(f"they have another type in this namespace, so that sessions do not set them: {types}")
    if setup.refused:
        types = ", ".join(f"{name} ({SEARCH_ATTRIBUTES[name]})" for name in setup.refused)
        lines += [
            f"the server does not let this client register search attributes ({setup.reason}).",
            f"Create them by hand, on Temporal Cloud in the namespace's settings or with its API: {types}",
        ]
    return lines
