"""`clew ask`, and `clew chat` without a terminal: send messages and print the answers."""

from __future__ import annotations

import asyncio
import sys

from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import show
from clew.cli.chat.commands import Answer, Message, Mistake, Transcript, Typed, carry_out, format_help, parse_line
from clew.cli.failures import find_exit_code, report_error
from clew.cli.hints import write_command
from clew.cli.reach import WORKER_SECONDS, Opened, wait_for_answer
from clew.cli.watching import follow_session, wait_for_outcome
from clew.session.request import Request
from clew.session.session import Session
from clew_workflows.contract import OnBusy
from clew_workflows.contract.errors import ClewError, InvalidInput, WorkerUnavailable
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.outputs import Context, SessionStatus

GRACE_SECONDS = 15.0
"""Seconds after a request's timeout within which its outcome must arrive."""


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


class LineChat:
    """A chat without a terminal: a message or a command a line, and only the answers on stdout."""

    def __init__(self, opened: Opened, as_json: bool, on_busy: OnBusy | None) -> None:
        self._session = opened.session
        self._as_json = as_json
        self._on_busy: OnBusy | None = on_busy

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
                await self._answer(await _send(self._session, text, None, self._on_busy))
            case Mistake(reason):
                raise InvalidInput(reason)
            case Typed("help"):
                _print_remark(format_help(keys=False))
            case Typed("wait"):
                status = await wait_for_answer(self._session.status(), self._session.id)
                if status.request_id is None:
                    _print_remark("no request is active; /transcript shows the messages")
                else:
                    await self._answer(self._session.request(status.request_id))
            case Typed("fork", name):
                words = ["fork", self._session.id, *(["--as", name] if name else [])]
                raise InvalidInput(f"/fork needs a terminal: use `{write_command(*words)}`")
            case Typed("open", name):
                raise InvalidInput(f"/open needs a terminal: use `{write_command('chat', name)}`")
            case Typed("model", ""):
                status = await wait_for_answer(self._session.status(), self._session.id)
                _print_remark(f"the model is {status.model}")
            case Typed():
                self._print(await carry_out(self._session, parsed))

    async def _answer(self, request: Request) -> None:
        await _answer(request, self._as_json, in_lines=True)

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
                _print_remark(show.format_receipt(answer))
        return None


def _print_remark(text: str) -> None:
    """Print a remark on stderr, apart from the answers."""
    _notify(show.make_text((text, "dim")))


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
    outcome = await (follow_session(to, request) if live else wait_for_outcome(request, _notify))
    answer = await request.answer()
    if as_json:
        show.print_document({**outcome.as_dict(), "answer": answer}, in_lines=in_lines)
    elif not live:
        # Unchanged, for a file or another program.
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    return outcome
