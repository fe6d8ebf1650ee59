"""`clew follow`: watch a session. It costs the session nothing, and nothing is typed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.live import Live as LiveDisplay
from rich.status import Status
from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import hints, options, reach, show
from clew.cli.chat.rendering import Painter
from clew.cli.chat.screen import Screen
from clew.cli.failures import exit_on_error, format_message
from clew.cli.listing import make_cells, make_table
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.session.connection import Clew
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    ResultRequired,
    Retrying,
    SessionEvent,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
    ToolStarted,
)
from clew.session.request import Request
from clew.session.session import Session
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.lists import SessionSummary
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.payloads import AssistantMessage, ToolMessage
from clew_workflows.thread.entries import Entry

# Wait for a reply: show it as it grows on a terminal, with its tool calls and their results.


QUIET_SECONDS = 0.7
"""Seconds without an outcome after which a request is followed, to learn whether a call waits or is retried."""


class View:
    """The terminal below the prompt: text, notes and a spinner. The spinner has a line of its own."""

    def __init__(self, to: Console, session_id: str) -> None:
        self._to = to
        self._session_id = session_id
        self._reply: tuple[str, int] | None = None
        self._at_line_start = True
        self._spinner: Status | None = None

    def wait(self, reason: str) -> None:
        """Show a spinner with the reason for waiting."""
        if self._spinner is None and self._at_line_start:
            self._spinner = self._to.status(show.make_text((reason, "dim")))
            self._spinner.start()
        elif self._spinner is not None:
            self._spinner.update(show.make_text((reason, "dim")))

    def end(self) -> None:
        """Stop the spinner and begin a new line."""
        self._stop_spinner()
        if not self._at_line_start:
            self._to.out()
            self._at_line_start = True

    def show(self, event: SessionEvent) -> None:
        """Show an event of the run."""
        match event:
            case TextAdded():
                self._show_text(event)
            case EntryCommitted():
                self._show_entry(event.entry)
            case ThinkingAdded():
                self.wait("thinking")
            case ToolStarted():
                self.wait(f"running {event.name}")
            case ToolProgressed():
                self.wait(f"{event.name}: {event.text}")
            case ApprovalRequired() | ResultRequired():
                self.print_note(f"[{make_notice(event, self._session_id)}]")
                self.wait("waiting for approval" if isinstance(event, ApprovalRequired) else "waiting for a result")
            case Retrying():
                self.print_note(f"[{make_notice(event, self._session_id)}]")
                self.wait("waiting for the next attempt")
            case Restarted():
                self._reply = None
                self.print_note(f"[attempt {event.attempt}: the reply starts over]")
            case _:
                pass

    def _show_text(self, event: TextAdded) -> None:
        """Append new text. Printed text cannot be taken back, only printed again."""
        call_id, shown = self._reply or ("", 0)
        if call_id != event.call_id:
            self.end()
            shown = 0
        if event.offset > shown:
            self.print_note(f"[{event.offset} characters before this]")
        elif event.offset < shown:
            self.print_note("[the reply is replaced]" if event.offset == 0 else f"[from character {event.offset} on]")
        self._reply = (event.call_id, event.offset + len(event.text))
        if text := show.strip_controls(event.text):
            self._stop_spinner()
            # Not through rich, which would wrap each piece by itself.
            self._to.file.write(text)
            self._to.file.flush()
            self._at_line_start = text.endswith("\n")

    def _show_entry(self, entry: Entry) -> None:
        message = entry.body
        if isinstance(message, ToolMessage):
            self.end()
            self._to.print(show.format_tool_result(message.content, self._to.width))
        elif isinstance(message, AssistantMessage):
            for call in message.tool_calls or ():
                self.end()
                self._to.print(show.format_tool_call(call["name"], call["arguments"]), soft_wrap=True)

    def print_note(self, text: str) -> None:
        """Print a note on a line of its own; an empty note only begins a new line."""
        self.end()
        if text:
            self._to.print(show.make_text((text, "dim")), soft_wrap=True)

    def _stop_spinner(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None


async def follow_session(to: Console, request: Request) -> RequestOutcome:
    """Show a request's reply until the request ends."""
    view = View(to, request.session_id)
    view.wait("waiting for the model")
    try:
        async with aclosing(request.events()) as events:
            async for event in events:
                view.show(event)
    finally:
        view.end()
    outcome = await request.result()
    if outcome.status == "completed" and outcome.termination_reason != "final_answer":
        view.print_note(f"[ended: {outcome.termination_reason}]")
    return outcome


async def wait_for_outcome(request: Request, notify: Callable[[Text], None]) -> RequestOutcome:
    """Wait for a request's outcome without showing its reply; `notify` gets the calls that wait or are retried."""
    ending = asyncio.ensure_future(request.result())
    notifying = asyncio.ensure_future(_notify_of_calls(request, notify))
    try:
        return await ending
    finally:
        for task in (ending, notifying):
            task.cancel()
        await asyncio.gather(ending, notifying, return_exceptions=True)


async def _notify_of_calls(request: Request, notify: Callable[[Text], None]) -> None:
    await asyncio.sleep(QUIET_SECONDS)
    # The events are only for notices: a failure to read them does not end the wait.
    with suppress(ClewError, TemporalError):
        async with aclosing(request.events()) as events:
            async for event in events:
                if isinstance(event, Retrying):
                    notify(show.make_text(make_notice(event, request.session_id)))
                elif isinstance(event, ApprovalRequired | ResultRequired):
                    call = show.format_tool_call(event.name, event.arguments)
                    notify(show.make_text(make_notice(event, request.session_id), ": ").append(call))


def make_notice(event: ApprovalRequired | ResultRequired | Retrying, session_id: str) -> str:
    """Say which command a waiting tool call needs, or why a call is retried, and when."""
    match event:
        case ApprovalRequired(tool_call_id=call):
            return f"{call} waits for approval: `{hints.write_command('approve', session_id, call)}`, or deny"
        case ResultRequired(tool_call_id=call):
            return f"{call} waits for its result: `{hints.write_command('submit', session_id, call, 'TEXT')}`"
        case Retrying():
            call = f"{event.tool_call_id}: " if event.tool_call_id else ""
            return f"{call}attempt {event.attempt} follows{_format_wait(event.next_at)}: {event.message}"


def _format_wait(next_at: str | None) -> str:
    seconds = 0.0 if next_at is None else (datetime.fromisoformat(next_at) - datetime.now(UTC)).total_seconds()
    return f" in {seconds:.0f} s" if seconds >= 1 else ""


# `clew top`: the live sessions of a namespace, in a table that is kept up to date.


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


TOP_COMMANDS = (top,)


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
