"""A reply that is waited for: as it grows on a terminal, with the tools that it asks for and what they answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from clew.cli import show
from clew.contract.outputs import SessionStatus, StreamState
from clew.contract.payloads import AssistantMessage, ToolMessage
from clew.errors import ClewError
from clew.outcomes import RequestOutcome
from clew.session.request import Request
from clew.session.session import Session
from clew.thread.entries import Entry

QUIET_SECONDS = 0.7
"""No news for so long means that a tool is at work or an approval is waited for, which only the session tells."""
LONGEST_PAUSE_SECONDS = 2.0
"""Who is to approve something is told within this time, however long the model took before."""


@dataclass(frozen=True, slots=True)
class _DisplayedReply:
    """What is on the screen of a model call's reply: the text without a gap, and where in the reply it begins."""

    attempt: int
    start: int
    text: str


class Growth:
    """What is new in each state of a growing reply. Text that is out cannot be taken back, only begun again."""

    def __init__(self) -> None:
        self._calls: dict[str, _DisplayedReply] = {}

    def add(self, state: StreamState) -> tuple[str | None, str]:
        """The text to append; and, where it does not go on from the text before it, what to say about that first."""
        shown = self._calls.get(state.call_id)
        if shown and shown.attempt == state.attempt and shown.start <= state.offset <= shown.start + len(shown.text):
            known = shown.text[state.offset - shown.start :]
            if state.text.startswith(known):
                new = state.text[len(known) :]
                self._calls[state.call_id] = _DisplayedReply(shown.attempt, shown.start, shown.text + new)
                return None, new
            if known.startswith(state.text):
                return None, ""  # a state from before what is already shown
        self._calls[state.call_id] = _DisplayedReply(state.attempt, state.offset, state.text)
        if shown and shown.attempt != state.attempt:
            return f"[attempt {state.attempt}: the reply starts over]", state.text
        if state.offset:
            return f"[{state.offset} characters before this]", state.text
        return "[the whole reply]" if shown and shown.text else "", state.text


class View:
    """The part of the terminal below the question. The spinner never shares a line with text."""

    def __init__(self, to: Console) -> None:
        self._to = to
        self._growth = Growth()
        self._at_line_start = True
        self._spinner: Status | None = None

    def wait(self, why: str) -> None:
        """Show that something is going on."""
        if self._spinner is None and self._at_line_start:
            self._spinner = self._to.status(show.make_text((why, "dim")))
            self._spinner.start()
        elif self._spinner is not None:
            self._spinner.update(show.make_text((why, "dim")))

    def end(self) -> None:
        """Leave the terminal at the beginning of a line, with nothing moving."""
        self._stop_spinner()
        if not self._at_line_start:
            self._to.out()
            self._at_line_start = True

    def grow(self, state: StreamState) -> None:
        """Show what is new of a reply."""
        note, new = self._growth.add(state)
        if note is not None and (note or new):
            self.note(note)
        if text := show.strip_controls(new):
            self._stop_spinner()
            # Not through rich, which would lay it out: a piece of a reply is no text of its own.
            self._to.file.write(text)
            self._to.file.flush()
            self._at_line_start = text.endswith("\n")
        elif state.tool_name:
            self.end()
            self.wait(f"calling {state.tool_name}")
        elif state.thinking and not state.text:
            self.wait("thinking")

    def commit(self, entry: Entry) -> None:
        """Show a fact of the run, where it says more than is shown already."""
        said = entry.body
        if isinstance(said, ToolMessage):
            self.end()
            self._to.print(show.format_tool_result(said.content, self._to.width))
        if not isinstance(said, AssistantMessage):
            return
        self.grow(make_final_state(entry, said))
        for call in said.tool_calls or ():
            self.end()
            self._to.print(show.format_tool_call(call), soft_wrap=True)
            self.wait(f"running {call['name']}")

    def note(self, text: str) -> None:
        """A remark of Clew's own on a line of its own; an empty one only begins a line."""
        self.end()
        if text:
            self._to.print(show.make_text((text, "dim")), soft_wrap=True)

    def _stop_spinner(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None


async def follow(to: Console, session: Session, request: Request, *, from_seq: int = 0) -> RequestOutcome:
    """Show a request's reply until it has its outcome. `from_seq` is where in the thread its run may begin."""
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
                    # First what came before this model call: the whole of the last one's reply, and its tools.
                    await reader.show(view)
                call_id = state.call_id
                view.grow(state)
            else:
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                await reader.look(view)
        await reader.show(view)
    finally:
        view.end()
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    outcome = await request.result()
    if outcome.status == "completed" and outcome.termination_reason != "final_answer":
        view.note(f"[ended: {outcome.termination_reason}]")
    return outcome


async def wait_for_outcome(session: Session, request: Request, notify: Callable[[Text], None]) -> RequestOutcome:
    """Wait for a request's outcome without showing its reply; `notify` gets the calls that wait for approval."""
    approvals = _Approvals(request)
    pause = QUIET_SECONDS
    ending = asyncio.ensure_future(request.result())
    try:
        while not (await asyncio.wait([ending], timeout=pause))[0]:
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            # The outcome comes all the same, whoever is away for a while.
            with suppress(ClewError):
                for call, said in approvals.take_new(await session.status()):
                    notify(show.make_text(said, ": ").append(show.format_tool_call(call)))
        return ending.result()
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)


async def _read_next(states: AsyncIterator[StreamState]) -> StreamState | None:
    return await anext(states, None)


class _RunEntries:
    """The run's entries, each shown once."""

    def __init__(self, session: Session, request: Request, from_seq: int) -> None:
        self._session = session
        self._request = request
        self._next_seq = from_seq
        self._rev = -1
        self._approvals = _Approvals(request)

    async def show(self, view: View) -> None:
        """Show what has been committed since the last time."""
        found = await self._session.entries(
            from_seq=self._next_seq, kind="ai_message", request_id=self._request.request_id
        )
        for entry in found:
            view.commit(entry)
            self._next_seq = entry.seq + 1

    async def look(self, view: View) -> None:
        """Show what there is beside a growing reply: new facts, and approvals that the run waits for."""
        status = await self._session.status()
        if status.rev != self._rev:
            self._rev = status.rev
            await self.show(view)
        for _call, said in self._approvals.take_new(status):
            view.note(f"[{said}]")
            view.wait("waiting for approval")


class _Approvals:
    """The tool calls of a request that wait for somebody's word, each told once."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._reported: set[str] = set()

    def take_new(self, status: SessionStatus) -> Iterator[tuple[Mapping[str, Any], str]]:
        """The calls that were not told yet, and what to say about each."""
        if self._request.request_id in status.queued_request_ids:
            return  # what waits then is another request's
        for call in status.pending_approvals:
            waiting = call["tool_call_id"]
            if waiting not in self._reported:
                self._reported.add(waiting)
                yield call, f"{waiting} waits: `clew approve {status.session_id} {waiting}`, or deny"


def make_final_state(entry: Entry, said: AssistantMessage) -> StreamState:
    """An assistant's message as the last state of its stream."""
    return StreamState(
        request_id=entry.refs["request_id"],
        run_id=entry.refs["run_id"],
        call_id=entry.refs["call_id"],
        attempt=said.recipe.attempt if said.recipe else 1,
        iteration=entry.refs["iteration"],
        text=said.content,
    )
