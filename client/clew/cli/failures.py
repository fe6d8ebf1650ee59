"""How a command ends: its exit code, and the one line that says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from temporalio.exceptions import TemporalError

from clew.cli import show
from clew.cli.reach import Misconfigured
from clew.errors import ClewError, RequestFailed, ServerUnreachable, WorkerUnavailable

FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


@contextmanager
def exit_on_error(as_json: bool, code: int | None = None) -> Iterator[None]:
    """Run a command's body; every expected failure becomes a line and an exit code, and Ctrl-C only the code.

    `code` is that of every failure, where a command has one of its own.
    """
    try:
        yield
    except (ClewError, TemporalError) as error:
        report_error(error, as_json)
        raise typer.Exit(find_exit_code(error) if code is None else code) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def report_error(error: ClewError | TemporalError, as_json: bool, *, in_lines: bool = False) -> None:
    """Report an error: `type: message` on stderr, or an object on stdout. A failed request's is its outcome."""
    if not as_json:
        show.make_console(stderr=True).print(
            show.make_text((f"{find_error_type(error)}: ", "bold red"), format_message(error)), soft_wrap=True
        )
        return
    about = {"type": find_error_type(error), "message": format_message(error)}
    if isinstance(error, RequestFailed):
        outcome = error.outcome.as_json()
        show.print_document({**outcome, "error": {**outcome.get("error", {}), **about}}, in_lines=in_lines)
    else:
        show.print_document({"error": about}, in_lines=in_lines)


def find_exit_code(error: ClewError | TemporalError) -> int:
    """The exit code of a command that ends with an error."""
    match error:
        case ServerUnreachable() | WorkerUnavailable():
            return UNREACHABLE
        case Misconfigured():
            return USAGE
        case _:
            return FAILED


def find_error_type(error: ClewError | TemporalError) -> str:
    """The error's word: the contract's where it has one, the class's name in the same style where not."""
    match error:
        case RequestFailed(outcome=outcome):
            return outcome.error.type if outcome.error else outcome.termination_reason or outcome.status
        case ClewError():
            word = getattr(error, "type", None)
            return (
                word if isinstance(word, str) else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
            )
        case _:
            return "temporal_error"


def format_message(error: ClewError | TemporalError) -> str:
    """What went wrong, in one line."""
    match error:
        case RequestFailed(outcome=outcome) if outcome.error:
            return outcome.error.message
        case RequestFailed(outcome=outcome) if outcome.status == "completed":
            return f"request {outcome.request_id} ended without an answer"
        case RequestFailed(outcome=outcome):
            return f"request {outcome.request_id} was {outcome.status}"
        case _:
            return str(error)
