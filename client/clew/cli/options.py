"""What commands have in common: their options, and how they reach the session that they are about."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from clew.cli import reach
from clew.cli.reach import Target
from clew.session.connection import Clew
from clew.session.session import Session

T = TypeVar("T")

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The Temporal server; Temporal's own configuration (TEMPORAL_ADDRESS) unless given."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Temporal's namespace; its own configuration (TEMPORAL_NAMESPACE) unless given."
    ),
]
TaskQueue = Annotated[
    str,
    typer.Option(envvar="CLEW_TASK_QUEUE", metavar="NAME", help="The task queue that new sessions are started on."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Model = Annotated[
    str | None, typer.Option(metavar="PROVIDER:NAME", help="Open the session with this model if there is none.")
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="A new session's system prompt.")]
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
FromSeq = Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="Begin at this seq.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.")]
OpId = Annotated[
    str,
    typer.Option(
        "--op-id", metavar="ID", help="Given again, it is the same operation and applied once.", show_default=False
    ),
]
Lane = Annotated[str | None, typer.Option(metavar="NAME", help="The lane; the active one unless given.")]


class Busy(StrEnum):
    """What becomes of a message while another request is served."""

    REJECT = "reject"
    QUEUE = "queue"
    INTERRUPT = "interrupt"
    STEER = "steer"


class At(StrEnum):
    """When an input enters the run."""

    TERMINAL = "terminal"
    STEP = "step"


class Unread(StrEnum):
    """What becomes of an input that the run has not read when it ends."""

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
        help="While another request is served: be refused, wait, cancel that one, or join its run. As the session is "
        "configured unless given.",
    ),
]


def get_word(choice: StrEnum | None) -> Any:
    """The contract's word for a choice; type checkers do not agree about its type."""
    return None if choice is None else choice.value


def make_target(address: str | None, namespace: str | None, task_queue: str) -> Target:
    """Where the command looks for sessions."""
    if address and "://" in address:
        raise typer.BadParameter("a host and a port, without a scheme", param_hint="--address")
    return Target(address, namespace, task_queue)


def read_text(given: str) -> str:
    """The argument TEXT: what was given, or stdin for a dash."""
    return read_stdin("TEXT").rstrip("\n") if given == "-" else given


def read_stdin(hint: str) -> str:
    """All of stdin."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"stdin is not UTF-8: {error}", param_hint=hint) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def ask_existing(target: Target, session_id: str, question: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    """What an existing session answers."""

    async def work() -> T:
        opened = await reach.find_session(await reach.connect(target), session_id)
        return await question(opened.session)

    return run(work())


def ask_any(target: Target, session_id: str, question: Callable[[Clew, Session], Coroutine[Any, Any, T]]) -> T:
    """What is known of a session, be it in its archive alone."""

    async def work() -> T:
        clew = await reach.use_task_queue(await reach.connect(target), session_id)
        return await question(clew, clew.session(session_id))

    return run(work())


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a command's work."""
    with asyncio.Runner() as runner:
        return runner.run(work)
