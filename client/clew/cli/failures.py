"""Report a command's failure: an exit code and one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from temporalio.exceptions import TemporalError

from clew.cli import show
from clew.cli.hints import complete_commands
from clew.cli.reach import Misconfigured
from clew_workflows.contract.errors import ClewError, RequestFailed, ServerUnreachable, WorkerUnavailable, find_word

FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


@contextmanager
def exit_on_error(as_json: bool, code: int | None = None) -> Iterator[None]:
    """Run a command's body. An expected failure becomes one line and an exit code, Ctrl-C an exit code.

    `code` replaces the exit code of every failure.
    """
    try:
        yield
    except (ClewError, TemporalError) as error:
        report_error(error, as_json)
        raise typer.Exit(find_exit_code(error) if code is None else code) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def report_error(error: ClewError | TemporalError, as_json: bool, *, in_lines: bool = False) -> None:
    """Print an error: `type: message` on stderr, or as JSON on stdout. A failed request prints its outcome."""
    if not as_json:
        line = show.make_text((f"{find_error_type(error)}: ", "bold red"), format_message(error))
        show.print_lines(show.make_console(stderr=True), line)
        return
    fields = {"type": find_error_type(error), "message": format_message(error)}
    if isinstance(error, RequestFailed):
        outcome = error.outcome.as_dict()
        show.print_document({**outcome, "error": {**outcome.get("error", {}), **fields}}, in_lines=in_lines)
    else:
        show.print_document({"error": fields}, in_lines=in_lines)


def find_exit_code(error: ClewError | TemporalError) -> int:
    """Find the exit code for an error."""
    match error:
        case ServerUnreachable() | WorkerUnavailable():
            return UNREACHABLE
        case Misconfigured():
            return USAGE
        case _:
            return FAILED


def find_error_type(error: ClewError | TemporalError) -> str:
    """Find the error's word: the contract's, else the class's name in snake case."""
    match error:
        case RequestFailed(outcome=outcome):
            return outcome.error.type if outcome.error else outcome.termination_reason or outcome.status
        case ClewError():
            return find_word(error)
        case _:
            return "temporal_error"


def format_message(error: ClewError | TemporalError) -> str:
    """Format an error's message in one line, with commands that run as they stand."""
    return complete_commands(_find_message(error))


def _find_message(error: ClewError | TemporalError) -> str:
    match error:
        case RequestFailed(outcome=outcome) if outcome.error:
            return outcome.error.message
        case RequestFailed(outcome=outcome) if outcome.status == "completed":
            return f"request {outcome.request_id} ended without an answer"
        case RequestFailed(outcome=outcome):
            return f"request {outcome.request_id} was {outcome.status}"
        case _:
            return str(error)
