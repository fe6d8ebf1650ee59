"""How a command is written: its own arguments, and one call. What all commands share stands here.

`command` makes a command of a function that gets an `Invocation` and the arguments. `action` makes one of a function
that returns what is asked of a session; the command prints the receipt. Both add the options `--json`, `--address`,
`--namespace` and `--task-queue`, and turn expected failures into one line and an exit code.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import shlex
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args, get_type_hints

import typer
from rich.console import Console

from clew.cli import _operators as operators
from clew.cli import hints, reach, show
from clew.cli.failures import exit_on_error
from clew.cli.reach import Target
from clew.cli.shared_options import Address, Namespace, SessionId, TaskQueue, flag
from clew.session.connection import Clew
from clew.session.session import Session
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.outputs import Receipt

P = ParamSpec("P")
T = TypeVar("T")

Action = Callable[[Session], Coroutine[Any, Any, Receipt]]
"""Changes a session."""

TARGET_OPTIONS: dict[str, tuple[Any, str | None]] = {
    "address": (Address, None),
    "namespace": (Namespace, None),
    "task_queue": (TaskQueue, TASK_QUEUE),
}
"""The options that say where the sessions are, by their parameters, with their defaults."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command that runs, with the options that all commands share.

    Attributes:
        target: The server, namespace and task queue.
        as_json: Whether to print JSON.
    """

    target: Target
    as_json: bool

    def run(self, work: Callable[[Clew], Coroutine[Any, Any, T]]) -> T:
        """Connect to the server and do some work."""

        async def connect_and_work() -> T:
            return await work(await reach.connect(self.target))

        return asyncio.run(connect_and_work())

    def ask_existing(self, session_id: str, question: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Ask a session that exists as a workflow."""

        async def work(clew: Clew) -> T:
            return await question((await reach.find_session(clew, session_id)).session)

        return self.run(work)

    def ask_any(self, session_id: str, question: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Ask about a session that may exist only in the archive."""

        async def work(clew: Clew) -> T:
            return await question((await reach.use_task_queue(clew, session_id)).session(session_id))

        return self.run(work)

    def print(self, document: Mapping[str, Any], write: Callable[[Console], None]) -> None:
        """Print a result: as a JSON document, or as `write` prints it for people."""
        if self.as_json:
            show.print_document(document)
        else:
            write(show.make_console())

    def print_lines(self, document: Mapping[str, Any], *lines: str) -> None:
        """Print a result: as a JSON document, or as lines for people."""
        self.print(document, lambda to: show.print_lines(to, *lines))

    def print_receipt(self, receipt: Receipt) -> None:
        """Print a session's receipt."""
        self.print_lines(receipt.as_dict(), show.format_receipt(receipt))


def command(
    *,
    json_help: str = "Print JSON, for scripts.",
    target: Sequence[str] = tuple(TARGET_OPTIONS),
    operates: bool = False,
    failure_code: int | None = None,
) -> Callable[[Callable[Concatenate[Invocation, P], None]], Callable[..., None]]:
    """Make a command of a function.

    Args:
        json_help: The help of `--json`.
        target: Which of the `TARGET_OPTIONS` the command has.
        operates: The command needs the extra `worker`.
        failure_code: The exit code of every failure; None: each has its own.
    """

    def decorate(function: Callable[Concatenate[Invocation, P], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def invoke(
            *,
            as_json: bool,
            address: str | None = None,
            namespace: str | None = None,
            task_queue: str = TASK_QUEUE,
            **arguments: Any,
        ) -> None:
            if address and "://" in address:
                raise typer.BadParameter("must be HOST:PORT, without a scheme", param_hint="--address")
            invocation = Invocation(Target(address, namespace, task_queue), as_json)
            hints.remember_target(invocation.target)
            with exit_on_error(as_json, failure_code):
                if operates:
                    operators.require_worker_extra()
                    _import_extensions()
                function(invocation, **arguments)  # type: ignore[call-arg]

        options: dict[str, tuple[Any, Any]] = {
            "as_json": (Annotated[bool, flag(json_help, "--json")], False),
            **{name: TARGET_OPTIONS[name] for name in target},
        }
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in options.items()
        ]
        # typer reads the parameters of the command from it.
        _set_parameters(invoke, [*_list_parameters(function)[1:], *shared])
        return invoke

    return decorate


def _import_extensions() -> None:
    try:
        operators.import_extensions(os.environ)
    except ValueError as error:
        raise reach.Misconfigured(str(error)) from error


def action(function: Callable[P, Action]) -> Callable[..., None]:
    """Make a command that changes a session of a function that returns the change. SESSION is its first argument."""

    def change_session(invocation: Invocation, /, session: str, **arguments: Any) -> None:
        change = function(**arguments)  # type: ignore[call-arg]
        op_id = arguments.get("op_id")
        repeat = f". To repeat it, add --op-id {shlex.quote(op_id)}: it is applied once" if op_id else ""

        async def change_in_time(reached: Session) -> Receipt:
            return await reach.wait_for_change(change(reached), session, "command", repeat)

        invocation.print_receipt(invocation.ask_existing(session, change_in_time))

    first = [
        Parameter("invocation", Parameter.POSITIONAL_OR_KEYWORD, annotation=Invocation),
        Parameter("session", Parameter.POSITIONAL_OR_KEYWORD, annotation=SessionId),
    ]
    functools.update_wrapper(change_session, function)
    _set_parameters(change_session, [*first, *_list_parameters(function)])
    return command()(change_session)


def _set_parameters(function: Callable[..., Any], parameters: Sequence[Parameter]) -> None:
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {}


def _list_parameters(function: Callable[..., Any]) -> list[Parameter]:
    """List a function's parameters. The fields of a TypedDict, taken as `**fields`, come before the other options."""
    arguments: list[Parameter] = []
    fields: list[Parameter] = []
    options: list[Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            fields = [
                Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
                for typed in get_args(parameter.annotation)
                for name, annotation in get_type_hints(typed, include_extras=True).items()
            ]
        else:
            (options if parameter.kind is Parameter.KEYWORD_ONLY else arguments).append(parameter)
    return [*arguments, *fields, *options]
