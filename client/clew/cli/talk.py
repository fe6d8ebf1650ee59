"""`clew ask` and `clew chat`: send messages and print the answers."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import show
from clew.cli.failures import find_exit_code, report_error
from clew.cli.follow import follow, wait_for_outcome
from clew.cli.reach import WORKER_SECONDS, Opened, wait_for_answer
from clew.contract import OnBusy
from clew.contract.receipts import Receipt
from clew.errors import ClewError, WorkerUnavailable
from clew.outcomes import RequestOutcome
from clew.session.request import Request
from clew.session.session import Session

GRACE_SECONDS = 15.0
"""Seconds after a request's timeout within which its outcome must arrive."""
RECENT_ENTRIES = 24
"""Number of entries that are read for a resumed session's last turns."""
RECENT_TURNS = 2
"""Number of turns that a resumed session shows at most."""

HELP = """\
/status               show what the session is doing
/context              show the context that the model gets
/transcript           show all messages
/wait                 show the reply of the active request
/steer TEXT           correct the active request
/cancel [REASON]      cancel the active request
/approve ID [REASON]  approve a waiting tool call
/deny ID [REASON]     deny a waiting tool call
/quit                 leave, like Ctrl-D; the session stays
Ctrl-C stops showing a reply; the request continues. Any other line is a message."""

_COMMAND = re.compile(r"(/\w+)|(/(?:steer|cancel|approve|deny))\s+(.+)", re.DOTALL)
"""A slash and a word, with text after it for the commands that take some. Other lines are messages."""


async def ask(
    opened: Opened,
    text: str,
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
        text: The message.
        timeout_seconds: The request's timeout. Its clock stops while the request is queued or waits for approval.
        on_busy: What the session does with the message while a request is active.
        as_json: Print a JSON document.
        grace_seconds: Seconds after the timeout until the command checks that a worker still answers.
        worker_seconds: Seconds within which the worker must answer that check.

    Raises:
        ClewError: The session refused the message, or the request ended without an answer.
    """
    session = opened.session
    request = await _send(session, text, timeout_seconds, on_busy)
    patience = None if timeout_seconds is None else timeout_seconds + grace_seconds
    answering = asyncio.ensure_future(_answer(request, as_json, in_lines=False))
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


class Chat:
    """A chat in the terminal or from a pipe: one message per line."""

    def __init__(self, runner: asyncio.Runner, opened: Opened, as_json: bool, on_busy: OnBusy | None) -> None:
        self._runner = runner
        self._opened = opened
        self._session = opened.session
        self._as_json = as_json
        self._on_busy: OnBusy | None = on_busy
        self._to = show.make_console()
        self._interactive = sys.stdin.isatty() and self._to.is_terminal and not as_json

    def run(self) -> int:
        """Chat until the input ends. Return the exit code: in a script that of the last failure."""
        code = 0
        if self._interactive:
            self._runner.run(self._greet())
        for line in self._read_lines():
            if line in ("/quit", "/exit"):
                break
            try:
                self._runner.run(self._handle_line(line))
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._print_remark(
                    "the request continues: /wait shows its reply, /steer TEXT corrects it, /cancel cancels it"
                )
            except (ClewError, TemporalError) as error:
                report_error(error, self._as_json, in_lines=True)
                code = find_exit_code(error)
        if self._interactive:
            self._print_remark(f"the session stays: resume it with `clew chat {self._session.id}`")
        return 0 if self._interactive else code

    def _read_lines(self) -> Iterator[str]:
        """Yield the lines that are typed or piped, without empty ones."""
        if not self._interactive:
            yield from (stripped for line in sys.stdin if (stripped := line.strip()))
            return
        with suppress(ImportError):  # Windows has no readline
            import readline  # noqa: F401, PLC0415 - it gives `input` its editing and its history
        while True:
            self._to.print()
            try:
                line = input("> ").strip()
            except EOFError:
                self._to.print()
                return
            if line:
                yield line

    async def _greet(self) -> None:
        status = self._opened.status
        entries = f"{status.rev} entr{'y' if status.rev == 1 else 'ies'}"
        state = f"resumed, {entries}" if self._opened.resumed else "new"
        self._to.rule(
            show.make_text((f"session {status.session_id}", "bold"), f" · {status.model} · {state}"), style="dim"
        )
        if self._opened.resumed:
            recent = await self._session.transcript(from_seq=max(status.rev - RECENT_ENTRIES, 0))
            turns = [number for number, message in enumerate(recent) if message["role"] == "user"]
            show.print_messages(self._to, recent[turns[-RECENT_TURNS:][0] if turns else 0 :])
        if status.request_id:
            self._print_remark(f"request {status.request_id} is active: /wait shows its reply")
        self._print_remark("/help lists the commands")

    async def _handle_line(self, line: str) -> None:
        if command := _COMMAND.fullmatch(line):
            return await self._carry_out_command(command[1] or command[2], command[3] or "")
        request = await _send(self._session, line, None, self._on_busy)
        await self._follow(request)
        return None

    async def _follow(self, request: Request) -> None:
        await _answer(request, self._as_json, in_lines=True)

    async def _carry_out_command(self, name: str, words: str) -> None:
        match name:
            case "/help":
                self._print_remark(HELP)
            case "/status":
                status = await wait_for_answer(self._session.status(), self._session.id)
                if self._as_json:
                    return show.print_document(status.as_json(), in_lines=True)
                show.print_status(self._to, status)
            case "/context":
                context = await wait_for_answer(self._session.context(), self._session.id)
                if self._as_json:
                    return show.print_document(context.as_json(), in_lines=True)
                show.print_context(self._to, context)
            case "/transcript":
                messages = await wait_for_answer(self._session.transcript(), self._session.id)
                if self._as_json:
                    return show.print_document({"messages": messages}, in_lines=True)
                show.print_messages(self._to, messages)
            case "/wait":
                status = await wait_for_answer(self._session.status(), self._session.id)
                if status.request_id is None:
                    return self._print_remark("no request is active; /transcript shows the messages")
                await self._follow(self._session.request(status.request_id))
            case "/steer" | "/cancel" | "/approve" | "/deny":
                await self._control(name, words)
            case _:
                self._print_remark(f"unknown command {name}: /help lists the commands")
        return None

    async def _control(self, name: str, words: str) -> None:
        """Send a control command and print its receipt; with --json on stdout."""
        session, first, others = self._session, *words.partition(" ")[::2]
        work: Coroutine[Any, Any, Receipt]
        match name:
            case "/steer":
                work = session.steer(words)
            case "/cancel":
                work = session.cancel(reason=words or None)
            case "/approve":
                work = session.approve(first, reason=others.strip() or None)
            case _:
                work = session.deny(first, reason=others.strip() or None)
        receipt: Receipt = await wait_for_answer(work, session.id)
        if self._as_json:
            return show.print_document(receipt.as_json(), in_lines=True)
        return self._print_remark(show.format_receipt(receipt))

    def _print_remark(self, text: str) -> None:
        """Print a remark; in a script on stderr, apart from the answers."""
        to = self._to if self._interactive else show.make_console(stderr=True)
        to.print(show.make_text((text, "dim")), soft_wrap=True)


def _notify(text: Text) -> None:
    """Print a notice on stderr, apart from the answers."""
    show.make_console(stderr=True).print(text, soft_wrap=True)


async def _send(session: Session, text: str, timeout_seconds: int | None, on_busy: OnBusy | None) -> Request:
    try:
        return await wait_for_answer(
            session.message(text, timeout_seconds=timeout_seconds, on_busy=on_busy), session.id
        )
    except WorkerUnavailable as error:
        raise WorkerUnavailable(f"{error}; the session may still accept the message once a worker runs") from None


async def _answer(request: Request, as_json: bool, *, in_lines: bool) -> RequestOutcome:
    """Print a request's answer: streamed on a terminal, at once in a pipe, or as JSON.

    Raises:
        RequestFailed: The request ended without an answer.
    """
    to = show.make_console()
    live = to.is_terminal and not as_json
    outcome = await (follow(to, request) if live else wait_for_outcome(request, _notify))
    answer = await request.answer()
    if as_json:
        show.print_document({**outcome.as_json(), "answer": answer}, in_lines=in_lines)
    elif not live:
        # Unchanged, for a file or another program.
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    return outcome
