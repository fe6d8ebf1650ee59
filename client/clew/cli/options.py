"""Options that several commands share, and the completion of their values."""

from __future__ import annotations

import asyncio
import getpass
import re
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

import typer

from clew.cli import reach
from clew.cli.reach import Target
from clew.session.connection import Clew
from clew.session.handle import make_id
from clew.session.session import Session
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.config import ProviderTool

LOOK_SECONDS = 3.0
"""Seconds within which a shell gets its completions; afterwards it gets none."""
MAX_SESSIONS = 200
"""Sessions that are read for names; the newest."""
_ID = re.compile(r"[\w.:-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the newest sessions.

    Attributes:
        sessions: Their ids, the newest first.
        agents: The agents that they have.
        models: The models that they have, if they have no agent.
    """

    sessions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


async def list_names(clew: Clew, prefix: str = "") -> Names:
    """List the names of sessions that the server knows and whose ids begin with `prefix`. Needs no worker.

    Raises:
        ClewError: The server does not list them.
    """
    query = f'WorkflowId STARTS_WITH "{prefix}"' if prefix else 'ExecutionStatus != "Failed"'
    summaries = await reach.take_sessions(clew.sessions(query=query), MAX_SESSIONS)
    return Names(
        sessions=tuple(summary.session_id for summary in summaries),
        agents=_sort(summary.agent for summary in summaries),
        models=_sort(summary.model for summary in summaries),
    )


def _sort(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name}))


def complete_session(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a session."""

    async def find(clew: Clew) -> Iterable[str]:
        return (await list_names(clew, incomplete)).sessions if _ID.fullmatch(incomplete) else ()

    return _look_up(context, incomplete, find)


def complete_agent(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an agent, of those that sessions have."""

    async def find(clew: Clew) -> Iterable[str]:
        return (await list_names(clew)).agents

    return _look_up(context, incomplete, find)


def complete_model(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a model, of those that sessions have."""

    async def find(clew: Clew) -> Iterable[str]:
        return (await list_names(clew)).models

    return _look_up(context, incomplete, find)


PROVIDER_TOOLS = ", ".join(get_args(ProviderTool))
"""The names of the tools that a provider runs itself."""


def complete_provider_tool(incomplete: str) -> list[str]:
    """Complete the name of a tool that a provider runs itself."""
    return [name for name in get_args(ProviderTool) if name.startswith(incomplete)]


def check_provider_tools(names: list[str] | None) -> list[str] | None:
    """Check the names of tools that a provider runs itself, before anything is sent.

    Raises:
        typer.BadParameter: A name is unknown.
    """
    for name in names or ():
        if name not in get_args(ProviderTool):
            raise typer.BadParameter(f"{name!r} is none of {PROVIDER_TOOLS}")
    return names


def complete_approval(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a tool call that waits for approval in the session that is named."""
    return _complete_call(context, incomplete, "approval")


def complete_external(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of an external tool call that waits for its result."""
    return _complete_call(context, incomplete, "result")


def _complete_call(context: typer.Context, incomplete: str, needs: str) -> list[str]:
    async def find(clew: Clew) -> Iterable[str]:
        session: Session = (await reach.find_session(clew, context.params["session"])).session
        waiting = await session.list_waiting_calls()
        return [one.call.tool_call_id for one in waiting if one.needs == needs and one.session_id == session.id]

    return _look_up(context, incomplete, find)


def _look_up(
    context: typer.Context, incomplete: str, find: Callable[[Clew], Coroutine[Any, Any, Iterable[str]]]
) -> list[str]:
    """Look names up on the server that the line names. Without an answer there is nothing to complete."""
    typed = context.params
    target = Target(typed.get("address"), typed.get("namespace"), typed.get("task_queue") or TASK_QUEUE)

    async def look() -> list[str]:
        async with asyncio.timeout(LOOK_SECONDS):
            known = await find(await reach.connect(target))
            return list(islice((name for name in known if name.startswith(incomplete)), MAX_SESSIONS))

    try:
        return asyncio.run(look())
    except Exception:
        return []


SessionId = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="The session's id.", show_default=False, autocompletion=complete_session),
]
OptionalSessionId = Annotated[
    str | None, typer.Argument(metavar="[SESSION]", help="The session's id.", autocompletion=complete_session)
]
TaskQueue = Annotated[
    str,
    typer.Option(envvar="CLEW_TASK_QUEUE", metavar="NAME", help="The task queue of new sessions."),
]


class StartOptions(TypedDict, total=False):
    """The configuration of a new session, as far as the command line sets it: the fields of `Clew.open`."""

    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The agent of a new session, by its name on the workers.",
            autocompletion=complete_agent,
        ),
    ]
    pin: Annotated[
        bool | None,
        typer.Option("--pin", help="A new session keeps this version of its agent and its tools' schemas."),
    ]
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="The model of a new session.", autocompletion=complete_model),
    ]
    fallbacks: Annotated[
        list[str] | None,
        typer.Option(
            "--fallback",
            metavar="PROVIDER:NAME",
            help="A model that runs of a new session try while its model has an outage; may be repeated.",
            autocompletion=complete_model,
        ),
    ]
    system_prompt: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The system prompt of a new session.")
    ]
    tools: Annotated[
        list[str] | None, typer.Option("--tool", metavar="NAME", help="A tool of a new session; may be repeated.")
    ]
    provider_tools: Annotated[
        list[str] | None,
        typer.Option(
            "--provider-tool",
            metavar="NAME",
            help=f"A tool of a new session that the model's provider runs itself: {PROVIDER_TOOLS}; may be repeated.",
            callback=check_provider_tools,
            autocompletion=complete_provider_tool,
        ),
    ]
    require_approval: Annotated[
        list[str] | None,
        typer.Option(
            "--require-approval",
            metavar="NAME",
            help="A tool of a new session whose calls wait for approval; may be repeated.",
        ),
    ]


Text = Annotated[
    str, typer.Argument(metavar="TEXT", help="The message; `-` reads it from stdin.", show_default=False)
]
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
FromFile = Annotated[
    Path | None,
    typer.Option("--from-file", metavar="FILE", help="Read a file that `clew export` wrote; needs no server."),
]
At = Literal["terminal", "step"]
"""When a run reads an input."""
Unread = Literal["follow_up", "drop"]
"""What the session does with an input that the run did not read."""


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


def require_one_source(session: str | None, from_file: Path | None) -> None:
    """Refuse a command line that names both a session and a file, or neither."""
    if (session is None) is (from_file is None):
        raise typer.BadParameter("name either a session or --from-file", param_hint="SESSION")
