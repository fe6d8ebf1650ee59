"""The commands that list sessions, and that prepare a namespace for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, get_args

import typer
from rich import box
from rich.table import Table

from clew.cli import options, reach, show
from clew.cli.failures import FAILED, exit_on_error
from clew.cli.options import Address, AsJson, Namespace, TaskQueue
from clew.session.namespace import NamespaceSetup
from clew.session.namespace import setup_namespace as register_attributes
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, ListedStatus, SessionSummary

Status = StrEnum("Status", list(get_args(ListedStatus)))  # type: ignore[misc]
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


def sessions(
    *,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Sessions whose metadata `user` is this.")] = None,
    status: Annotated[Status | None, typer.Option(help="Sessions in this status.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Sessions with this agent.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Sessions that were active since then: today, 24h, 7d, 2026-11-01."),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY",
            help="A filter in the syntax of Temporal's visibility, such as `ClewCostUsd > 1`. It leaves out sessions "
            "that only the archive has.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Largest number to print.")] = 50,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """List sessions: live ones, the newest first, and then those that only the archive has."""
    target = options.make_target(address, namespace, task_queue)

    async def work() -> list[SessionSummary]:
        clew = await reach.connect(target)
        if query is None:
            await clew.check_worker()
        rows: list[SessionSummary] = []
        wanted = options.get_word(status)
        async with aclosing(clew.sessions(user=user, status=wanted, agent=agent, since=since, query=query)) as listed:
            async for summary in listed:
                rows.append(summary)
                if len(rows) > limit:
                    break
        return rows

    with exit_on_error(as_json):
        rows = options.run(work())
        if as_json:
            more = {"more": True} if len(rows) > limit else {}
            show.print_document({"sessions": [summary.as_dict() for summary in rows[:limit]], **more})
        else:
            _print_table(rows[:limit])
            if len(rows) > limit:
                remark = f"there are more than {limit}: --limit shows more"
                show.make_console(stderr=True).print(show.make_text((remark, "dim")), soft_wrap=True)


def _print_table(rows: list[SessionSummary]) -> None:
    to = show.make_console()
    if not to.is_terminal:
        for summary in rows:
            print("\t".join(show.strip_controls(cell).replace("\t", " ") for cell in make_cells(summary)))  # noqa: T201
        return
    if not rows:
        to.print("no sessions")
        return
    to.print(make_table(rows, to.width))


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


def setup_namespace(*, as_json: AsJson = False, address: Address = None, namespace: Namespace = None) -> None:
    """Register the search attributes of sessions in a Temporal namespace. It can be repeated."""
    target = options.make_target(address, namespace, TASK_QUEUE)

    async def work() -> NamespaceSetup:
        return await register_attributes((await reach.connect(target)).temporal)

    with exit_on_error(as_json):
        setup = options.run(work())
        if as_json:
            show.print_document(asdict(setup))
        else:
            for line in _describe(setup):
                show.print_text(show.make_console(), show.make_text(line))
        if setup.refused or setup.mistyped:
            raise typer.Exit(FAILED)


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
