"""`clew evaluate`: ask the model calls of a recorded session again, under another agent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli import _operators as operators
from clew.cli import offline, options, show
from clew.cli.failures import exit_on_error
from clew.cli.options import AsJson

if TYPE_CHECKING:
    from clew.operators import Evaluation, Turn, TurnReply

SHOWN_CHARACTERS = 100
"""Most characters of a text or of a call's arguments in the output for people."""


def evaluate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that `clew export` wrote; `-` is stdin.")],
    *,
    agents: Annotated[str, typer.Option(metavar="MODULES", help="Modules that define agents, separated by commas.")],
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent. Default: the only one of the modules.")
    ] = None,
    tools: Annotated[
        str,
        typer.Option(
            metavar="MODULES", help="Modules with the tools that the agent names. Default: the recorded schemas."
        ),
    ] = "",
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:NAME", help="Ask this model instead of the agent's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask each model call of an exported session again, under another agent, and compare the replies.

    Each call gets the context that it had, with the agent's prompt, tools, policy and model. No tool is called. The
    variables of the model providers are those of a worker; the models' calls cost money.
    """

    async def work() -> Evaluation:
        chosen, known, providers = operators.load_evaluation_settings(
            os.environ, _split(agents), _split(tools), agent, model
        )
        with offline.open_file(file, "rb") as source:
            entries = operators.read_export(source, offline.read_sealer())
        own_models = operators.read_own_models(os.environ)
        return await operators.evaluate_thread(entries, chosen, providers, tools=known, own_models=own_models)

    with exit_on_error(as_json):
        operators.require_worker_extra()
        # The modules may be those of the current folder, as for `clew worker`.
        if not {"", os.getcwd()} & set(sys.path):
            sys.path.insert(0, os.getcwd())
        evaluation: Evaluation = options.run(work())
        if as_json:
            show.print_document(evaluation.as_dict())
        else:
            _print(evaluation)


def _split(names: str) -> list[str]:
    return [name for name in map(str.strip, names.split(",")) if name]


def _print(evaluation: Evaluation) -> None:
    to = show.make_console()
    for turn in evaluation.turns:
        for line in _describe_turn(turn):
            to.print(show.make_text(line), soft_wrap=True)
    turns = evaluation.turns
    same_text, same_calls = sum(turn.same_text for turn in turns), sum(turn.same_calls for turn in turns)
    rows = [
        f"{len(turns)} model calls: {same_text} with the same text, {same_calls} with the same tool calls, "
        f"{sum(turn.reply is None for turn in turns)} without a reply",
        f"recorded: {show.format_usage(evaluation.recorded_usage)}",
        f"{evaluation.agent} with {evaluation.model}: {show.format_usage(evaluation.usage)}",
    ]
    for row in rows:
        to.print(show.make_text(row), soft_wrap=True)


def _describe_turn(turn: Turn) -> Iterator[str]:
    """Describe a turn in one line, or where the replies differ, in one line for each."""
    title = f"{turn.call_id or turn.seq}"
    if turn.reply is None:
        yield f"{title}  no reply: {turn.problem}"
    elif turn.same_text and turn.same_calls:
        yield f"{title}  same: {_describe_reply(turn.reply)}"
    else:
        yield f"{title}  was: {_describe_reply(turn.recorded)}"
        yield f"{title}  now: {_describe_reply(turn.reply)}"


def _describe_reply(reply: TurnReply) -> str:
    calls = [f"{name}({json.dumps(dict(arguments))})" for name, arguments in reply.tool_calls]
    return " ".join(show.shorten(part, SHOWN_CHARACTERS) for part in (reply.text, *calls) if part)
