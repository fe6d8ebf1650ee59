"""Wait for a reply: show it as it grows on a terminal, with its tool calls and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from rich.console import Console
from rich.status import Status
from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import hints, show
from clew.contract.payloads import AssistantMessage, ToolMessage
from clew.errors import ClewError
from clew.outcomes import RequestOutcome
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
from clew.thread.entries import Entry

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


async def follow(to: Console, request: Request) -> RequestOutcome:
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
