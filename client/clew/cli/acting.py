"""Shared parts of the commands that change a session: printing the receipt, parsing JSON arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import typer

from clew.cli import options, reach, show
from clew.cli.failures import exit_on_error
from clew.cli.reach import Target
from clew.session.session import Session
from clew_workflows.contract.errors import UnknownApproval, WorkerUnavailable
from clew_workflows.contract.outputs import Receipt


def act(
    target: Target,
    session_id: str,
    action: Callable[[Session], Coroutine[Any, Any, Receipt]],
    as_json: bool,
    op_id: str | None = None,
) -> None:
    """Change an existing session and print the receipt.

    Args:
        target: Where the session is.
        session_id: The session.
        action: What changes it.
        as_json: Whether to print JSON.
        op_id: The id with which the command can be repeated; None: it has none.
    """

    async def act_in_time(reached: Session) -> Receipt:
        try:
            return await reach.wait_for_answer(action(reached), session_id)
        except WorkerUnavailable as error:
            repeat = f". To repeat it, add --op-id {shlex.quote(op_id)}: it is applied once" if op_id else ""
            raise WorkerUnavailable(
                f"{error}; the session may still accept the command once a worker runs{repeat}"
            ) from None

    with exit_on_error(as_json):
        show.print_receipt(options.ask_existing(target, session_id, act_in_time), as_json)


async def find_waiting_approval(session: Session) -> str:
    """Find the only tool call that waits for an approval. Returns its id.

    Raises:
        UnknownApproval: None waits, or more than one.
    """
    waiting = [call.tool_call_id for call in (await session.status()).pending_approvals]
    if len(waiting) != 1:
        raise UnknownApproval(
            f"several tool calls wait for approval: name one of {', '.join(waiting)}"
            if waiting
            else "no tool call waits for approval"
        )
    return waiting[0]


def parse_object(text: str, hint: str) -> dict[str, Any]:
    """Parse an argument as a JSON object; `hint` names the argument in the error."""
    value = parse_json(text, hint)
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object", param_hint=hint)
    return value


def parse_json(text: str, hint: str) -> Any:
    """Parse an argument as JSON; `hint` names the argument in the error."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not valid JSON: {error}", param_hint=hint) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
