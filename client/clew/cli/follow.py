"""Wait for a reply: show it as it grows on a terminal, with its tool calls and their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console
from rich.status import Status
from rich.text import Text

from clew.cli import show
from clew.contract.outputs import PendingCall, SessionStatus, StreamState
from clew.contract.payloads import AssistantMessage, ToolMessage
from clew.errors import ClewError
from clew.outcomes import RequestOutcome
from clew.session.request import Request
from clew.session.session import Session
from clew.thread.entries import Entry

QUIET_SECONDS = 0.7
"""Seconds without a new state after which the session's status is read: a tool may run, or wait."""
LONGEST_PAUSE_SECONDS = 2.0
"""Longest time between two reads of the status, in seconds; bounds the delay of a notice about a waiting call."""


@dataclass(frozen=True, slots=True)
class _DisplayedReply:
    """The part of a model call's reply that is on the screen.

    Attributes:
        attempt: The attempt that wrote it.
        start: Offset of the part in the reply, in characters.
        text: The part, without gaps.
    """

    attempt: int
    start: int
    text: str


class Growth:
    """Finds the new text in each state of a growing reply. Printed text cannot be taken back, only printed again."""

    def __init__(self) -> None:
        self._calls: dict[str, _DisplayedReply] = {}

    def add(self, state: StreamState) -> tuple[str | None, str]:
        """Return a note or None, and the text to append. A note says that the text does not continue the last one."""
        displayed = self._calls.get(state.call_id)
        if (
            displayed
            and displayed.attempt == state.attempt
            and displayed.start <= state.offset <= displayed.start + len(displayed.text)
        ):
            known = displayed.text[state.offset - displayed.start :]
            if state.text.startswith(known):
                new = state.text[len(known) :]
                self._calls[state.call_id] = _DisplayedReply(displayed.attempt, displayed.start, displayed.text + new)
                return None, new
            if known.startswith(state.text):
                return None, ""  # an older state
        self._calls[state.call_id] = _DisplayedReply(state.attempt, state.offset, state.text)
        if displayed and displayed.attempt != state.attempt:
            return f"[attempt {state.attempt}: the reply starts over]", state.text
        if state.offset:
            return f"[{state.offset} characters before this]", state.text
        return "[the whole reply]" if displayed and displayed.text else "", state.text


class View:
    """The terminal below the prompt: text, notes and a spinner. The spinner has a line of its own."""

    def __init__(self, to: Console) -> None:
        self._to = to
        self._growth = Growth()
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

    def show_reply(self, state: StreamState) -> None:
        """Show the new text of a reply."""
        note, new = self._growth.add(state)
        if note is not None and (note or new):
            self.print_note(note)
        if text := show.strip_controls(new):
            self._stop_spinner()
            # Not through rich, which would wrap each piece by itself.
            self._to.file.write(text)
            self._to.file.flush()
            self._at_line_start = text.endswith("\n")
        elif state.tool_name:
            self.end()
            self.wait(f"calling {state.tool_name}")
        elif state.thinking and not state.text:
            self.wait("thinking")

    def show_entry(self, entry: Entry) -> None:
        """Show an entry of the run: the rest of a reply, its tool calls, or a tool's result."""
        message = entry.body
        if isinstance(message, ToolMessage):
            self.end()
            self._to.print(show.format_tool_result(message.content, self._to.width))
        if not isinstance(message, AssistantMessage):
            return
        self.show_reply(make_final_state(entry, message))
        for call in message.tool_calls or ():
            self.end()
            self._to.print(show.format_tool_call(call["name"], call["arguments"]), soft_wrap=True)
            self.wait(f"running {call['name']}")

    def print_note(self, text: str) -> None:
        """Print a note on a line of its own; an empty note only begins a new line."""
        self.end()
        if text:
            self._to.print(show.make_text((text, "dim")), soft_wrap=True)

    def _stop_spinner(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None


async def follow(to: Console, session: Session, request: Request, *, from_seq: int = 0) -> RequestOutcome:
    """Show a request's reply until the request ends. Its entries are read from `from_seq` on."""
    view, reader = View(to), _RunEntries(session, request, from_seq)
    states = session.stream(request)
    pause, call_id = QUIET_SECONDS, ""
    view.wait("waiting for the model")
    coming = asyncio.ensure_future(_read_next(states))
    try:
        while True:
            await asyncio.wait([coming], timeout=pause)
            if coming.done():
                state = coming.result()
                if state is None:
                    break
                coming = asyncio.ensure_future(_read_next(states))
                pause = QUIET_SECONDS
                if state.call_id != call_id and state.iteration > 1:
                    # Finish the last model call first: the rest of its reply and its tool calls.
                    await reader.show(view)
                call_id = state.call_id
                view.show_reply(state)
            else:
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                await reader.check(view)
        await reader.show(view)
    finally:
        view.end()
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    outcome = await request.result()
    if outcome.status == "completed" and outcome.termination_reason != "final_answer":
        view.print_note(f"[ended: {outcome.termination_reason}]")
    return outcome


async def wait_for_outcome(session: Session, request: Request, notify: Callable[[Text], None]) -> RequestOutcome:
    """Wait for a request's outcome without showing its reply; `notify` gets the calls that wait."""
    waiting_calls = _WaitingCalls(request)
    pause = QUIET_SECONDS
    ending = asyncio.ensure_future(request.result())
    try:
        while not (await asyncio.wait([ending], timeout=pause))[0]:
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            # The status is only for notices: a failure to read it does not end the wait.
            with suppress(ClewError):
                for call, notice in waiting_calls.take_new(await session.status()):
                    notify(show.make_text(notice, ": ").append(show.format_tool_call(call.name, call.arguments)))
        return ending.result()
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)


async def _read_next(states: AsyncIterator[StreamState]) -> StreamState | None:
    return await anext(states, None)


class _RunEntries:
    """Reads a run's entries and shows each once."""

    def __init__(self, session: Session, request: Request, from_seq: int) -> None:
        self._session = session
        self._request = request
        self._next_seq = from_seq
        self._rev = -1
        self._waiting_calls = _WaitingCalls(request)

    async def show(self, view: View) -> None:
        """Show the entries committed since the last call."""
        entries = await self._session.entries(
            from_seq=self._next_seq, kind="ai_message", request_id=self._request.request_id
        )
        for entry in entries:
            view.show_entry(entry)
            self._next_seq = entry.seq + 1

    async def check(self, view: View) -> None:
        """Show new entries, and the calls that the run waits for."""
        status = await self._session.status()
        if status.rev != self._rev:
            self._rev = status.rev
            await self.show(view)
        for _call, notice in self._waiting_calls.take_new(status):
            view.print_note(f"[{notice}]")
            view.wait("waiting for approval" if status.pending_approvals else "waiting for a result")


class _WaitingCalls:
    """The tool calls of a request that wait for approval or for a result from outside, each reported once."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._reported: set[str] = set()

    def take_new(self, status: SessionStatus) -> Iterator[tuple[PendingCall, str]]:
        """Yield each call that was not reported yet, with a notice."""
        if self._request.request_id in status.queued_request_ids:
            return  # the waiting calls are another request's
        session = status.session_id
        notices: list[tuple[PendingCall, str, str]] = [
            (call, "approval", f"`clew approve {session} {call.tool_call_id}`, or deny")
            for call in status.pending_approvals
        ]
        notices += [
            (call, "its result", f"`clew submit {session} {call.tool_call_id} TEXT`")
            for call in status.pending_external_calls
        ]
        for call, waits_for, command in notices:
            notice = f"{call.tool_call_id} waits for {waits_for}: {command}"
            if notice not in self._reported:
                self._reported.add(notice)
                yield call, notice


def make_final_state(entry: Entry, reply: AssistantMessage) -> StreamState:
    """Make the last state of a stream from the committed reply."""
    return StreamState(
        request_id=entry.refs["request_id"],
        run_id=entry.refs["run_id"],
        call_id=entry.refs["call_id"],
        attempt=reply.recipe.attempt if reply.recipe else 1,
        iteration=entry.refs["iteration"],
        text=reply.content,
    )
