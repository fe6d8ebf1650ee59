"""What the commands have in common that change a session: the receipt, and arguments that are JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import typer

from clew.cli import options, reach, show
from clew.cli.failures import exit_on_error
from clew.cli.reach import Target
from clew.errors import WorkerUnavailable
from clew.session.session import Session


def act(
    target: Target,
    session_id: str,
    action: Callable[[Session], Coroutine[Any, Any, show.Receipt]],
    as_json: bool,
) -> None:
    """Do something to an existing session, and print its receipt."""

    async def acting(reached: Session) -> show.Receipt:
        try:
            return await reach.wait_for_answer(action(reached), session_id)
        except WorkerUnavailable as error:
            raise WorkerUnavailable(f"{error}; it may still be accepted when one comes") from None

    with exit_on_error(as_json):
        show.print_receipt(options.ask_existing(target, session_id, acting), as_json)


def parse_object(text: str, hint: str) -> dict[str, Any]:
    """The JSON object in an argument; `hint` names the argument where it is none."""
    value = parse_json(text, hint)
    if not isinstance(value, dict):
        raise typer.BadParameter("a JSON object is expected", param_hint=hint)
    return value


def parse_json(text: str, hint: str) -> Any:
    """The JSON in an argument; `hint` names the argument where it is none."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint=hint) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
