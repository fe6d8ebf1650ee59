"""`clew ask` and `clew chat`: open a session, send messages and print the answers.

`clew chat` on a terminal is `clew.cli.chat`.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Unpack, cast

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import attachments, reach, shared_options, show
from clew.cli.attachments import Attachment
from clew.cli.chat.typed_lines import Answer, Message, Mistake, Transcript, Typed, carry_out, format_help, parse_line
from clew.cli.command import Invocation, command
from clew.cli.failures import find_exit_code, report_error
from clew.cli.hints import describe_need, write_command
from clew.cli.reach import WORKER_SECONDS, Opened, wait_for_answer
from clew.cli.shared_options import Attach, MessageText, SessionId, StartOptions, Timeout, find_flags, option
from clew.content import AnyContent
from clew.session.connection import Clew
from clew.session.events import (
    ApprovalRequired,
    Change,
    EntryCommitted,
    LiveTurn,
    ResultRequired,
    Retrying,
    SessionEvent,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
    ToolStarted,
    Voided,
)
from clew.session.keywords import SessionOptions
from clew.session.request import Request
from clew.session.session import Session
from clew_workflows.contract import ConfigureInput, OnBusy
from clew_workflows.contract.content import describe_part, list_media
from clew_workflows.contract.errors import ClewError, InvalidInput, WorkerUnavailable
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.outputs import Context, SessionStatus
from clew_workflows.contract.payloads import AssistantMessage, ToolMessage

_OPTION_NAMES = find_flags(StartOptions)
"""The option of each field of a new session's configuration."""
WhenBusy = Annotated[
    OnBusy | None,
    option(
        None,
        "While a request is active: be refused, wait, cancel that request, or join its run. Default: the "
        "session's configuration.",
        "--on-busy",
    ),
]


@command()
def ask(
    invocation: Invocation,
    session: SessionId,
    text: MessageText,
    *,
    attach: Attach = None,
    on_busy: WhenBusy = None,
    timeout: Timeout = None,
    **configuration: Unpack[StartOptions],
) -> None:
    """Send a message and print the answer. Starts the session, or resumes it if it exists."""
    attached = attachments.attach_arguments(attach, text)
    typed = shared_options.read_text(text)

    async def work(clew: Clew) -> None:
        opened = await _open(clew, session, **configuration)
        content = await attachments.make_content(opened.session, typed, attached)
        await ask_session(opened, content, timeout_seconds=timeout, on_busy=on_busy, as_json=invocation.as_json)

    invocation.run(work)


@command()
def chat(
    invocation: Invocation,
    session: SessionId,
    *,
    on_busy: WhenBusy = None,
    resume_with: Annotated[str | None, typer.Option(hidden=True)] = None,
    **configuration: Unpack[StartOptions],
) -> None:
    """Chat in the terminal: replies stream while you type. Ctrl-D leaves and the session stays; /help lists the rest.

    Without a terminal, or with --json, each line of stdin is a message, and stdout has only the answers.
    """

    def write_resume(last_session: str, last_model: str) -> str:
        """Write the command that resumes the session in which the chat ends, with the model that it has there."""
        if resume_with is not None:  # the chat is a part of another program
            return resume_with.format(session=shlex.quote(last_session), model=shlex.quote(last_model))
        words = ["chat", last_session]
        if last_session == session:
            words += ["--agent", agent] if (agent := configuration["agent"]) else []
            words += ["--model", last_model] if configuration["model"] else []
        return write_command(*words, *(["--on-busy", on_busy] if on_busy else []))

    async def open_chat() -> tuple[Clew, Opened]:
        clew = await reach.connect(invocation.target)
        return clew, await _open(clew, session, **configuration)

    with asyncio.Runner() as runner:
        clew, opened = runner.run(open_chat())
        if sys.stdin.isatty() and show.make_console().is_terminal and not invocation.as_json:
            from clew.cli.chat.shell import Shell  # noqa: PLC0415 - no other command needs the terminal library

            code = runner.run(Shell(clew, opened, on_busy, write_resume).run())
        else:
            code = LineChat(opened, invocation.as_json, on_busy).run(runner)
    raise typer.Exit(code)


async def _open(clew: Clew, session_id: str, **configuration: Unpack[StartOptions]) -> Opened:
    """Open a session. A remark on stderr names the options that an existing session ignores."""
    # Options that may be repeated, and flags, have a value although they were not typed.
    typed = {name: value for name, value in configuration.items() if value not in (None, False, [])}
    opened = await reach.open_session(clew, session_id, **cast("SessionOptions", typed))
    if opened.session.ignored:
        requested = {name: typed.get(name) for name in opened.session.ignored}
        ignored = ", ".join(map(_OPTION_NAMES.__getitem__, requested))
        change = [word for name, value in requested.items() for word in _write_option(name, value)]
        remedy = f"`{write_command('configure', session_id, *change)}`" if change else "that is for new sessions"
        show.print_remark(
            f"session {session_id} exists and keeps its configuration ({opened.status.model}), so {ignored} "
            f"had no effect: {remedy}"
        )
    return opened


def _write_option(name: str, value: Any) -> list[str]:
    """Write a field as options of `clew configure`; none if only new sessions have it."""
    if name not in ConfigureInput.model_fields:
        return []
    values = [value] if isinstance(value, str) else value
    return [word for each in values for word in (_OPTION_NAMES[name], each)]


GRACE_SECONDS = 15.0
"""Seconds after a request's timeout within which its outcome must arrive."""


async def ask_session(
    opened: Opened,
    content: AnyContent,
    *,
    timeout_seconds: int | None,
    on_busy: OnBusy | None,
    as_json: bool,
    grace_seconds: float = GRACE_SECONDS,
    worker_seconds: float = WORKER_SECONDS,
) -> None:
    """Send one message and print its answer.

    Args:
        opened: The session.
        content: The message: a text, or parts whose blobs are stored.
        timeout_seconds: The request's timeout. Its clock stops while the request is queued or waits for approval.
        on_busy: What the session does with the message while a request is active.
        as_json: Print a JSON document.
        grace_seconds: Seconds after the timeout until the command checks that a worker still answers.
        worker_seconds: Seconds within which the worker must answer that check.

    Raises:
        ClewError: The session refused the message, or the request ended without an answer.
    """
    session = opened.session
    request = await _send(session, content, timeout_seconds, on_busy)
    patience = None if timeout_seconds is None else timeout_seconds + grace_seconds
    sent = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    answering = asyncio.ensure_future(_answer(session, request, as_json, in_lines=False, sent=sent))
    try:
        while not (await asyncio.wait([answering], timeout=patience))[0]:
            # The timeout's clock stops while the request is queued or waits for approval: only a worker knows.
            await _check_served(session, request, timeout_seconds, worker_seconds)
        answering.result()
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _check_served(
    session: Session, request: Request, timeout_seconds: int | None, worker_seconds: float
) -> None:
    try:
        await wait_for_answer(session.status(), session.id, worker_seconds)
    except WorkerUnavailable:
        raise WorkerUnavailable(
            f"request {request.request_id} has no outcome after its {timeout_seconds} s: no worker serves the "
            "session; the request continues once one runs"
        ) from None


class LineChat:
    """A chat without a terminal: a message or a command a line, and only the answers on stdout."""

    def __init__(self, opened: Opened, as_json: bool, on_busy: OnBusy | None) -> None:
        self._session = opened.session
        self._as_json = as_json
        self._on_busy: OnBusy | None = on_busy
        self._attached: list[Attachment] = []

    def run(self, runner: asyncio.Runner) -> int:
        """Chat until the input ends. Return the exit code of the last failure."""
        code = 0
        for line in filter(None, map(str.strip, sys.stdin)):
            parsed = parse_line(line)
            if parsed == Typed("quit"):
                break
            try:
                runner.run(self._handle(parsed))
            except (ClewError, TemporalError) as error:
                report_error(error, self._as_json, in_lines=True)
                code = find_exit_code(error)
        return code

    async def _handle(self, parsed: Message | Typed | Mistake) -> None:
        match parsed:
            case Message(text):
                await self._send(text)
            case Typed("attach", argument):
                self._attached = attachments.change_attached(self._attached, argument)
                show.print_remark(attachments.format_attached(self._attached))
            case Mistake(reason):
                raise InvalidInput(reason)
            case Typed("help"):
                show.print_remark(format_help(keys=False))
            case Typed("wait"):
                status = await wait_for_answer(self._session.status(), self._session.id)
                if status.request_id is None:
                    show.print_remark("no request is active; /transcript shows the messages")
                else:
                    await self._answer(self._session.request(status.request_id))
            case Typed("fork", name):
                words = ["fork", self._session.id, *(["--as", name] if name else [])]
                raise InvalidInput(f"/fork needs a terminal: use `{write_command(*words)}`")
            case Typed("open", name):
                raise InvalidInput(f"/open needs a terminal: use `{write_command('chat', name)}`")
            case Typed("model", ""):
                status = await wait_for_answer(self._session.status(), self._session.id)
                show.print_remark(f"the model is {status.model}")
            case Typed():
                self._print(await carry_out(self._session, parsed))

    async def _send(self, text: str) -> None:
        content = await attachments.make_content(self._session, text, self._attached)
        request = await _send(self._session, content, None, self._on_busy)
        self._attached = []
        await self._answer(request)

    async def _answer(self, request: Request) -> None:
        await _answer(self._session, request, self._as_json, in_lines=True)

    def _print(self, answer: Answer) -> None:
        if self._as_json:
            return show.print_document(answer.as_dict(), in_lines=True)
        match answer:
            case SessionStatus():
                show.print_status(show.make_console(), answer)
            case Context():
                show.print_context(show.make_console(), answer)
            case Transcript():
                show.print_messages(show.make_console(), answer.messages)
            case _:
                show.print_remark(show.format_receipt(answer))
        return None


def _notify(text: Text) -> None:
    show.print_lines(show.make_console(stderr=True), text)


async def _send(
    session: Session, content: AnyContent, timeout_seconds: int | None, on_busy: OnBusy | None
) -> Request:
    sending = session.message(content, timeout_seconds=timeout_seconds, on_busy=on_busy)
    return await reach.wait_for_change(sending, session.id, "message")


async def _answer(
    session: Session, request: Request, as_json: bool, *, in_lines: bool, sent: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Print a request's answer: streamed on a terminal, at once in a pipe, or as JSON, with the parts that were sent.

    Raises:
        RequestFailed: The request ended without an answer.
    """
    to = show.make_console()
    live = to.is_terminal and not as_json
    outcome = await (follow_session(to, request) if live else wait_for_outcome(request, _notify))
    for name, reason in (outcome.unread or {}).items():
        _notify(Text(f"the model did not get {name}: {reason}"))
    answer = await request.answer()
    if as_json:
        sources = await _read_sources(session, outcome)
        content = {"content": list(sent)} if sent else {}
        show.print_document({**outcome.as_dict(), **content, "answer": answer, **sources}, in_lines=in_lines)
    elif not live:
        # Unchanged, for a file or another program.
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
        sources = await _read_sources(session, outcome)
        for line in show.list_source_lines(sources.get("provider_calls"), sources.get("citations")):
            _notify(line)


async def _read_sources(session: Session, outcome: RequestOutcome) -> dict[str, Any]:
    """Read the calls that the provider ran for a request, and the citations and parts of the answer, if it has any.

    Nothing is lost without them: also empty, if no worker answers.
    """
    reading = session.entries(request_id=outcome.request_id, kind="ai_message")
    try:
        entries = await wait_for_answer(reading, session.id)
    except (ClewError, TemporalError):
        return {}
    replies = {entry.seq: entry.body for entry in entries if isinstance(entry.body, AssistantMessage)}
    answer = replies.get(outcome.answer_seq or 0)
    sources = {
        "provider_calls": [call for reply in replies.values() for call in reply.provider_calls or ()],
        "citations": answer.citations if answer else None,
        "answer_parts": answer.content if answer and not isinstance(answer.content, str) else None,
    }
    return {name: value for name, value in sources.items() if value}


# Wait for a reply: show it as it grows on a terminal, with its tool calls and their results.


QUIET_SECONDS = 0.7
"""Seconds without an outcome after which a request is followed, to learn whether a call waits or is retried."""


_WAITED_FOR = {
    "approval_required": "waiting for approval",
    "result_required": "waiting for a result",
    "retrying": "waiting for the next attempt",
}
"""What the spinner says after these events."""


class View:
    """The terminal below the prompt: text, notes and a spinner. The spinner has a line of its own."""

    def __init__(self, to: Console, session_id: str) -> None:
        self._to = to
        self._session_id = session_id
        self._turn = LiveTurn()
        self._reply = ("", 0)
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
        for change in self._turn.take(event):
            self._show(change)

    def _show(self, change: Change) -> None:
        match change:
            case TextAdded():
                self._show_text(change)
            case ThinkingAdded():
                self.wait("thinking")
            case Voided(starts_over=True):
                self._reply = ("", 0)
                self.print_note(f"[attempt {change.attempt}: the reply starts over]")
            case EntryCommitted(body=ToolMessage() as result):
                self.end()
                self._to.print(show.format_tool_result(result.text, self._to.width))
            case EntryCommitted(body=AssistantMessage() as reply):
                parts = [show.make_line((describe_part(part), "dim")) for part in list_media(reply.content)]
                calls = [show.format_tool_call(call["name"], call["arguments"]) for call in reply.tool_calls or ()]
                for line in (*parts, *calls, *show.list_source_lines(reply.provider_calls, reply.citations)):
                    self.end()
                    show.print_lines(self._to, line)
            case ToolStarted():
                self.wait(f"running {change.name}")
            case ToolProgressed():
                self.wait(change.description)
            case ApprovalRequired() | ResultRequired() | SubagentWaiting() | Retrying():
                self.print_note(f"[{make_notice(change, self._session_id)}]")
                if waited := _WAITED_FOR.get(change.type):
                    self.wait(waited)

    def _show_text(self, added: TextAdded) -> None:
        """Append new text. Printed text cannot be taken back, only printed again."""
        call_id, shown = self._reply
        if call_id != added.call_id:
            self.end()
            shown = 0
        if added.offset > shown:
            self.print_note(f"[{added.offset} characters before this]")
        elif added.offset < shown:
            self.print_note("[the reply is replaced]" if added.offset == 0 else f"[from character {added.offset} on]")
        self._reply = (added.call_id, added.offset + len(added.text))
        if text := show.strip_controls(added.text):
            self._stop_spinner()
            # Not through rich, which would wrap each piece by itself.
            self._to.file.write(text)
            self._to.file.flush()
            self._at_line_start = text.endswith("\n")

    def print_note(self, text: str) -> None:
        """Print a note on a line of its own; an empty note only begins a new line."""
        self.end()
        if text:
            show.print_lines(self._to, show.make_text((text, "dim")))

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
                if isinstance(event, Retrying | SubagentWaiting):
                    notify(show.make_text(make_notice(event, request.session_id)))
                elif isinstance(event, ApprovalRequired | ResultRequired):
                    call = show.format_tool_call(event.name, event.arguments)
                    notify(show.make_text(make_notice(event, request.session_id), ": ").append(call))


def make_notice(event: ApprovalRequired | ResultRequired | SubagentWaiting | Retrying, session_id: str) -> str:
    """Say which command a waiting tool call needs, or why a call is retried, and when."""
    match event:
        case ApprovalRequired(tool_call_id=call):
            return f"{call} {describe_need('approval', session_id, call)}"
        case ResultRequired(tool_call_id=call):
            return f"{call} {describe_need('result', session_id, call)}"
        case SubagentWaiting(session_id=subagent, tool_call_id=call):
            return f"{event.name} of {subagent} {describe_need(event.needs, subagent, call)}"
        case Retrying():
            call = f"{event.tool_call_id}: " if event.tool_call_id else ""
            return f"{call}attempt {event.attempt} follows{_format_wait(event.next_at)}: {event.message}"


def _format_wait(next_at: str | None) -> str:
    seconds = 0.0 if next_at is None else (datetime.fromisoformat(next_at) - datetime.now(UTC)).total_seconds()
    return f" in {seconds:.0f} s" if seconds >= 1 else ""
