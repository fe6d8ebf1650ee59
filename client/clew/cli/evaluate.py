"""The commands that compare context policies and evaluate changes of agents."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.cli import _operators as operators
from clew.cli import offline, options, show
from clew.cli.failures import exit_on_error
from clew.cli.options import Address, AsJson, Namespace, OptionalSessionId, TaskQueue
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.outcomes import Prices
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.comparison import Trial, compare_policies, compute_share
from clew_workflows.thread.thread import Thread

# `clew compare`: compare what a session's model calls cost and show under other context policies.


def compare(
    session: OptionalSessionId = None,
    *,
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A JSON file with a context policy. Its fields override the policy that each call had; may be "
            "repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PROVIDER:NAME", help="Use the list prices of this model instead of those of the calls."
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Read a file that `clew export` wrote; needs no server."),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Compare a session's model calls under other context policies. No model is called.

    Prints tokens, cached tokens and cost, one column per policy; the first column is the session itself. The session
    may be running or have ended.
    """
    if (session is None) is (from_file is None):
        raise typer.BadParameter("name either a session or --from-file", param_hint="SESSION")
    if model is not None and not all(model.partition(":")):
        raise typer.BadParameter("must be PROVIDER:NAME, as in openai:gpt-4o", param_hint="--model")
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        policies = _read_policies(policy or ())
        if from_file is not None:
            entries = offline.read_export(from_file)
        else:
            entries = options.ask_any(target, session or "", lambda _clew, reached: reached.entries())
        trials = compare_policies(Thread(entries), policies, _read_list_prices(model))
        if as_json:
            document = {"entries": len(entries), "trials": [trial.as_dict() for trial in trials]}
            show.print_document({"session_id": session} | document if session else document)
        else:
            _print_table(show.make_console(), trials)


def _read_policies(files: Iterable[Path]) -> dict[str, ContextPolicy]:
    """Read the policies, each by the name of its file.

    Raises:
        InvalidInput: A file does not hold a context policy, or is named twice.
        Misconfigured: A file cannot be read.
    """
    policies: dict[str, ContextPolicy] = {}
    for file in files:
        with offline.open_file(file, "rb") as source:
            text = source.read()
        try:
            policy = ContextPolicy.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            problem = f"{field}: {first['msg']}" if field else first["msg"]
            raise InvalidInput(f"{file} is not a context policy: {problem}") from None
        name = file.stem if file.stem not in policies else str(file)
        if name in policies:
            raise InvalidInput(f"{file} is named twice")
        policies[name] = policy
    return policies


def _read_list_prices(model: str | None) -> Prices | None:
    """Find the list prices of a model; None without a model.

    Raises:
        InvalidInput: The file that `CLEW_PRICES` names cannot be used.
        Misconfigured: The extra `worker` is not installed.
    """
    if model is None:
        return None
    return operators.find_prices(model, operators.read_own_models(os.environ))


def _print_table(to: Console, trials: Sequence[Trial]) -> None:
    rows = [("", *(trial.name for trial in trials))]
    rows += [
        (title, *cells) for title, *cells in zip(_TITLES, *map(_format_cells, trials), strict=True) if any(cells)
    ]
    if not to.is_terminal:
        for row in rows:
            show.print_text(to, Text("\t".join(map(show.strip_controls, row))))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in rows[0]:
        table.add_column(
            show.strip_controls(title), justify="right" if title else "left", style="" if title else "dim"
        )
    for row in rows[1:]:
        table.add_row(*map(show.strip_controls, row))
    to.print(table)


_TITLES = (
    "model calls",
    "input tokens",
    "predicted cached tokens",
    "predicted cached share",
    "cost",
    "reported input tokens",
    "reported cached share",
    "reported cost",
    "calls truncated",
    "messages left out, mean",
    "messages left out, most",
    "calls with cleared results",
    "calls shown a summary",
    "pins lost",
    "context overflows",
)


def _format_cells(trial: Trial) -> tuple[str, ...]:
    """Format a trial's column."""
    reported = trial.reported
    return (
        show.format_number(trial.calls),
        show.format_number(trial.input_tokens),
        show.format_number(trial.cached_tokens),
        _format_percent(trial.cached_tokens, trial.input_tokens),
        show.format_dollars(trial.cost_usd),
        show.format_number(reported.input_tokens) if reported else "",
        _format_percent(reported.cached_tokens, reported.input_tokens) if reported else "",
        show.format_dollars(reported.cost_usd) if reported else "",
        show.format_number(trial.truncated),
        f"{trial.left_out_mean:.1f}",
        show.format_number(trial.left_out_most),
        show.format_number(trial.cleared),
        show.format_number(trial.summaries),
        show.format_number(len(trial.lost_pins)),
        show.format_number(trial.overflows),
    )


def _format_percent(part: int, total: int) -> str:
    portion = compute_share(part, total)
    return "" if portion is None else f"{portion:.1%}"


# `clew evaluate`: ask the model calls of a recorded session again, under another agent.


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
