"""Names that a server knows, for the completion of what is typed: in the shell, and in the chat."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import typer

from clew.cli import reach
from clew.cli.reach import Target
from clew.session.connection import Clew
from clew.session.session import Session
from clew_workflows.contract import TASK_QUEUE

T = TypeVar("T")

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
    summaries = []
    async with aclosing(clew.sessions(query=query)) as listed:
        async for summary in listed:
            summaries.append(summary)
            if len(summaries) == MAX_SESSIONS:
                break
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
