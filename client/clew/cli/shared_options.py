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
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

import typer

from clew.cli import reach
from clew.cli.reach import Target
from clew.session.connection import Clew
from clew.session.handle import make_id
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


def option(
    metavar: str | None, text: str, *flags: str, complete: Callable[..., list[str]] | None = None, **more: Any
) -> Any:
    """Declare an option: what stands for its value in the help, None for that of its type, and its help.

    `flags`: its names; none: that of the parameter. `complete`: completes its value in a shell.
    """
    return typer.Option(*flags, metavar=metavar, help=text, autocompletion=complete, **more)


def flag(text: str, *flags: str, **more: Any) -> Any:
    """Declare an option without a value, by its help and its names."""
    return option(None, text, *flags, **more)


def argument(
    metavar: str,
    text: str,
    *,
    complete: Callable[..., list[str]] | None = None,
    show_default: bool = False,
    **more: Any,
) -> Any:
    """Declare an argument, by what stands for it in the help and its help."""
    return typer.Argument(metavar=metavar, help=text, show_default=show_default, autocompletion=complete, **more)


Find = Callable[[Clew, typer.Context, str], Coroutine[Any, Any, Iterable[str]]]
"""Finds the names for a word that is being typed."""


def _completion(find: Find) -> Callable[[typer.Context, str], list[str]]:
    """Make a completion that asks the server which the line names. Without an answer there is nothing to complete."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        typed = context.params
        target = Target(typed.get("address"), typed.get("namespace"), typed.get("task_queue") or TASK_QUEUE)

        async def look() -> list[str]:
            async with asyncio.timeout(LOOK_SECONDS):
                known = await find(await reach.connect(target), context, incomplete)
                return list(islice((name for name in known if name.startswith(incomplete)), MAX_SESSIONS))

        try:
            return asyncio.run(look())
        except Exception:
            return []

    return complete


@_completion
async def complete_session(clew: Clew, _context: typer.Context, incomplete: str) -> Iterable[str]:
    """Complete the id of a session."""
    return (await list_names(clew, incomplete)).sessions if _ID.fullmatch(incomplete) else ()


@_completion
async def complete_agent(clew: Clew, _context: typer.Context, _incomplete: str) -> Iterable[str]:
    """Complete the name of an agent, of those that sessions have."""
    return (await list_names(clew)).agents


@_completion
async def complete_model(clew: Clew, _context: typer.Context, _incomplete: str) -> Iterable[str]:
    """Complete the name of a model, of those that sessions have."""
    return (await list_names(clew)).models


async def _list_waiting(clew: Clew, context: typer.Context, needs: str) -> Iterable[str]:
    session = (await reach.find_session(clew, context.params["session"])).session
    waiting = await session.list_waiting_calls()
    return [one.call.tool_call_id for one in waiting if one.needs == needs and one.session_id == session.id]


@_completion
async def complete_approval(clew: Clew, context: typer.Context, _incomplete: str) -> Iterable[str]:
    """Complete the id of a tool call that waits for approval in the session that is named."""
    return await _list_waiting(clew, context, "approval")


@_completion
async def complete_external(clew: Clew, context: typer.Context, _incomplete: str) -> Iterable[str]:
    """Complete the id of an external tool call that waits for its result."""
    return await _list_waiting(clew, context, "result")


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


def find_login_name() -> str | None:
    """Find the login name of the person at the terminal; None: there is none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return None


SessionId = Annotated[str, argument("SESSION", "The session's id.", complete=complete_session)]
OptionalSessionId = Annotated[
    str | None, argument("[SESSION]", "The session's id.", complete=complete_session, show_default=True)
]
TaskQueue = Annotated[str, option("NAME", "The task queue of new sessions.", envvar="CLEW_TASK_QUEUE")]


Address = Annotated[
    str | None, option("HOST:PORT", "The Temporal server. Default: Temporal's configuration (TEMPORAL_ADDRESS).")
]
Namespace = Annotated[
    str | None, option("NAME", "Temporal's namespace. Default: Temporal's configuration (TEMPORAL_NAMESPACE).")
]
AsJson = Annotated[bool, flag("Print JSON, for scripts.", "--json")]
Model = Annotated[str | None, option("PROVIDER:NAME", "The model of a new session.", complete=complete_model)]
Timeout = Annotated[int | None, option("SECONDS", "Seconds after which the request fails.", min=1)]
Attach = Annotated[
    list[Path] | None,
    option(
        "PATH",
        "Send a file with the message: an image, a recording or a document. `-` reads it from stdin. May be "
        "repeated.",
        "--attach",
        allow_dash=True,
    ),
]


class StartOptions(TypedDict, total=False):
    """The configuration of a new session, as far as the command line sets it: the fields of `Clew.open`."""

    agent: Annotated[
        str | None, option("NAME", "The agent of a new session, by its name on the workers.", complete=complete_agent)
    ]
    pin: Annotated[
        bool | None, flag("A new session keeps this version of its agent and its tools' schemas.", "--pin")
    ]
    model: Model
    fallbacks: Annotated[
        list[str] | None,
        option(
            "PROVIDER:NAME",
            "A model that runs of a new session try while its model has an outage; may be repeated.",
            "--fallback",
            complete=complete_model,
        ),
    ]
    system_prompt: Annotated[str | None, option("TEXT", "The system prompt of a new session.", "--system")]
    tools: Annotated[list[str] | None, option("NAME", "A tool of a new session; may be repeated.", "--tool")]
    provider_tools: Annotated[
        list[str] | None,
        option(
            "NAME",
            f"A tool of a new session that the model's provider runs itself: {PROVIDER_TOOLS}; may be repeated.",
            "--provider-tool",
            callback=check_provider_tools,
            complete=complete_provider_tool,
        ),
    ]
    require_approval: Annotated[
        list[str] | None,
        option(
            "NAME", "A tool of a new session whose calls wait for approval; may be repeated.", "--require-approval"
        ),
    ]


MessageText = Annotated[str, argument("TEXT", "The message; `-` reads it from stdin.")]
OpId = Annotated[
    str,
    option(
        "ID",
        "Id of the operation. The same id again is applied once. Default: a new one, which the command prints.",
        "--op-id",
        default_factory=make_id,
        show_default=False,
    ),
]
By = Annotated[
    str | None,
    option(
        "NAME",
        "Who does it, stored with the entry. Default: the login name.",
        default_factory=find_login_name,
        show_default=False,
    ),
]
Lane = Annotated[str | None, option("NAME", "The lane. Default: the active one.")]
FromFile = Annotated[
    Path | None, option("FILE", "Read a file that `clew export` wrote; needs no server.", "--from-file")
]
At = Literal["terminal", "step"]
"""When a run reads an input."""
Unread = Literal["follow_up", "drop"]
"""What the session does with an input that the run did not read."""


def find_flags(options: type[Any]) -> dict[str, str]:
    """Find the option of each field of a type of options."""
    fields = get_type_hints(options, include_extras=True).items()
    # Typer keeps the first name of an annotation as the default until it has made the command.
    named = {name: (held.__metadata__[0].default, *(held.__metadata__[0].param_decls or ())) for name, held in fields}
    return {name: next((one for one in names if isinstance(one, str)), f"--{name}") for name, names in named.items()}


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
