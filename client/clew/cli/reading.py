"""The commands that read a session, and `clew follow`, which watches one. They cost the session nothing."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated

from rich.console import Console
from rich.live import Live
from rich.text import Text

from clew.cli import reach, shared_options, show
from clew.cli.chat.painting import FRAME_SECONDS, Painter
from clew.cli.chat.screen import Screen
from clew.cli.command import Invocation, command
from clew.cli.shared_options import Lane, SessionId, flag, option
from clew.session.connection import Clew
from clew.session.events import EntryCommitted, SessionEvent, TextAdded, ThinkingAdded, ToolProgressed
from clew.session.keywords import EntryFilters
from clew.session.session import Session

FromSeq = Annotated[int, option("SEQ", "Seq of the first one.", "--from", min=0)]
Limit = Annotated[int | None, option("N", "Largest number to print.", min=1)]


@command()
def status(invocation: Invocation, session: SessionId) -> None:
    """Show what a session is doing, its model and its usage."""
    answer = invocation.ask_existing(session, lambda reached: reached.status())
    invocation.print(answer.as_dict(), lambda to: show.print_status(to, answer))


@command()
def transcript(
    invocation: Invocation,
    session: SessionId,
    *,
    from_seq: FromSeq = 0,
    limit: Limit = None,
    lane: Lane = None,
    system: Annotated[bool, flag("Show the system prompt first.", "--system")] = False,
) -> None:
    """Show a lane's messages; with a limit the newest ones."""
    messages = invocation.ask_any(
        session,
        lambda reached: reached.transcript(context_ref=lane, from_seq=from_seq, limit=limit, include_system=system),
    )
    invocation.print({"messages": messages}, lambda to: show.print_messages(to, messages))


@command()
def context(
    invocation: Invocation,
    session: SessionId,
    *,
    at: Annotated[int | None, option("SEQ", "The context as it was at this seq.", min=0)] = None,
    call: Annotated[str | None, option("ID", "The context that this model call had, as in call-2.")] = None,
    lane: Lane = None,
    pending: Annotated[
        list[str] | None,
        option(
            "TEXT",
            "Preview the context and the cost of this message without sending it. `-` reads it from stdin; "
            "may be repeated.",
        ),
    ] = None,
) -> None:
    """Show the context that a model gets. Prints its messages, its tools and its token counts."""
    messages = [shared_options.read_text(text) for text in pending] if pending else None
    answer = invocation.ask_any(
        session, lambda reached: reached.context(context_ref=lane, at_seq=at, call_id=call, pending=messages)
    )
    invocation.print(answer.as_dict(), lambda to: show.print_context(to, answer))


@command()
def entries(
    invocation: Invocation,
    session: SessionId,
    *,
    from_seq: FromSeq = 0,
    limit: Limit = None,
    kind: Annotated[str | None, option("KIND", "Entries of this kind: config, ai_message, run, …")] = None,
    request: Annotated[str | None, option("ID", "Entries of this request.")] = None,
    run: Annotated[str | None, option("ID", "Entries of this run.")] = None,
    call: Annotated[str | None, option("ID", "Entries of this model call.")] = None,
    tool_call: Annotated[str | None, option("ID", "Entries of this tool call.")] = None,
    parent_call: Annotated[str | None, option("ID", "Entries of the model call that follows this one.")] = None,
    iteration: Annotated[int | None, option("N", "Entries of a run's Nth model call.", min=1)] = None,
    source: Annotated[str | None, option("NAME", "Inputs from this sender.")] = None,
    lane: Annotated[str | None, option("NAME", "Entries of this lane.")] = None,
) -> None:
    """Show the thread, entry by entry."""
    filters: EntryFilters = {
        "kind": kind,
        "request_id": request,
        "run_id": run,
        "call_id": call,
        "tool_call_id": tool_call,
        "parent_call_id": parent_call,
        "iteration": iteration,
        "source": source,
        "context_ref": lane,
    }
    # One more than the limit: its seq is the start of the next page.
    most = None if limit is None else limit + 1
    matching = invocation.ask_any(session, lambda reached: reached.entries(from_seq=from_seq, limit=most, **filters))
    page, following = matching[:limit], matching[limit:] if limit is not None else []
    next_page = {"next_seq": following[0].seq} if following else {}
    document = {"entries": [entry.as_dict() for entry in page], **next_page}
    invocation.print(document, lambda to: show.print_entries(to, page))


@command()
def follow(
    invocation: Invocation,
    session: SessionId,
    *,
    from_seq: Annotated[
        int | None, option("SEQ", "Seq of the first entry. Default: the next.", "--from-seq", "--from", min=0)
    ] = None,
) -> None:
    """Watch a session until it is closed: its messages, tools and replies as they grow. Ctrl-C ends."""

    async def watch(clew: Clew) -> None:
        reached = (await reach.use_task_queue(clew, session)).session(session)
        to = show.make_console()
        if invocation.as_json or not to.is_terminal:
            await _print_events(reached, from_seq, invocation.as_json)
        else:
            await _Watch(to, session).run(reached, from_seq)

    invocation.run(watch)


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
        with Live(console=self._to, auto_refresh=False, transient=True) as display:
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

    async def _turn(self, display: Live) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._tick += 1
            self._draw(display)

    def _draw(self, display: Live) -> None:
        rows = max(self._to.height - 2, 1)
        painted = self._painter.paint_live(self._screen.live, rows=rows, tick=self._tick, now=datetime.now(UTC))
        display.update(Text.from_ansi(painted), refresh=True)
