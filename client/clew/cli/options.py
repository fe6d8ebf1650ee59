"""Options that several commands share, and helpers that run a command's work."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from clew.cli import hints, reach
from clew.cli.names import complete_agent, complete_model, complete_session
from clew.cli.reach import Target
from clew.session.connection import Clew
from clew.session.handle import make_id
from clew.session.session import Session

T = TypeVar("T")

SessionId = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="The session's id.", show_default=False, autocompletion=complete_session),
]
OptionalSessionId = Annotated[
    str | None, typer.Argument(metavar="[SESSION]", help="The session's id.", autocompletion=complete_session)
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The Temporal server. Default: Temporal's configuration (TEMPORAL_ADDRESS)."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Temporal's namespace. Default: Temporal's configuration (TEMPORAL_NAMESPACE)."
    ),
]
TaskQueue = Annotated[
    str,
    typer.Option(envvar="CLEW_TASK_QUEUE", metavar="NAME", help="The task queue of new sessions."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Agent = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The agent of a new session, by its name on the workers.",
        autocompletion=complete_agent,
    ),
]
Pin = Annotated[
    bool, typer.Option("--pin", help="A new session keeps this version of its agent and its tools' schemas.")
]
Model = Annotated[
    str | None,
    typer.Option(metavar="PROVIDER:NAME", help="The model of a new session.", autocompletion=complete_model),
]
Fallbacks = Annotated[
    list[str] | None,
    typer.Option(
        "--fallback",
        metavar="PROVIDER:NAME",
        help="A model that runs of a new session try while its model has an outage; may be repeated.",
        autocompletion=complete_model,
    ),
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt of a new session.")]
Tools = Annotated[
    list[str] | None, typer.Option("--tool", metavar="NAME", help="A tool of a new session; may be repeated.")
]
RequireApproval = Annotated[
    list[str] | None,
    typer.Option(
        "--require-approval",
        metavar="NAME",
        help="A tool of a new session whose calls wait for approval; may be repeated.",
    ),
]
FromSeq = Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="Seq of the first one.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Largest number to print.")]
OpId = Annotated[
    str,
    typer.Option(
        "--op-id",
        metavar="ID",
        default_factory=make_id,
        help="Id of the operation. The same id again is applied once. Default: a new one, which the command prints.",
        show_default=False,
    ),
]
By = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who does it, stored with the entry. Default: the login name."),
]
Lane = Annotated[str | None, typer.Option(metavar="NAME", help="The lane. Default: the active one.")]


class Busy(StrEnum):
    """What the session does with a message while a request is active."""

    REJECT = "reject"
    QUEUE = "queue"
    INTERRUPT = "interrupt"
    STEER = "steer"


class At(StrEnum):
    """When a run reads an input."""

    TERMINAL = "terminal"
    STEP = "step"


class Unread(StrEnum):
    """What the session does with an input that the run did not read."""

    FOLLOW_UP = "follow_up"
    DROP = "drop"


class Reason(StrEnum):
    """Why a context is replaced."""

    MANUAL = "manual"
    RESTORE = "restore"
    COMPACTION = "compaction"
    SYSTEM = "system"


OnBusy = Annotated[
    Busy | None,
    typer.Option(
        "--on-busy",
        help="While a request is active: be refused, wait, cancel that request, or join its run. Default: the "
        "session's configuration.",
    ),
]


def get_word(choice: StrEnum | None) -> Any:
    """Get the contract's word for a choice. `Any`, because mypy and pyright infer different types."""
    return None if choice is None else choice.value


def make_target(address: str | None, namespace: str | None, task_queue: str) -> Target:
    """Make the target from the options."""
    if address and "://" in address:
        raise typer.BadParameter("must be HOST:PORT, without a scheme", param_hint="--address")
    target = Target(address, namespace, task_queue)
    hints.remember_target(target)
    return target


def find_login_name() -> str | None:
    """Find the login name of the person at the terminal; None: there is none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return None


def read_text(argument: str) -> str:
    """Read the argument TEXT; `-` reads stdin."""
    return read_stdin("TEXT").rstrip("\n") if argument == "-" else argument


def read_stdin(hint: str) -> str:
    """Read all of stdin; `hint` names the argument in the error."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"stdin is not UTF-8: {error}", param_hint=hint) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def ask_existing(target: Target, session_id: str, question: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    """Ask a session that exists as a workflow."""

    async def work() -> T:
        opened = await reach.find_session(await reach.connect(target), session_id)
        return await question(opened.session)

    return run(work())


def ask_any(target: Target, session_id: str, question: Callable[[Clew, Session], Coroutine[Any, Any, T]]) -> T:
    """Ask about a session that may exist only in the archive."""

    async def work() -> T:
        clew = await reach.use_task_queue(await reach.connect(target), session_id)
        return await question(clew, clew.session(session_id))

    return run(work())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work and return its result."""
    with asyncio.Runner() as runner:
        return runner.run(work)
