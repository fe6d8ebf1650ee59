"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from typer.main import get_command

from clew.cli.app import COMMANDS, GROUPS, app
from clew_activities.worker.process import make_parser
from docs.generate.tables import table

COMMON = {
    "--address": "The Temporal server. Default: Temporal's configuration (`TEMPORAL_ADDRESS`).",
    "--namespace": "Temporal's namespace. Default: Temporal's configuration (`TEMPORAL_NAMESPACE`).",
    "--json": "Print JSON, for scripts.",
    "--help": "Print the command's help.",
}
"""Options that many commands have; the page describes them once."""


def make_page() -> str:
    """Make the page."""
    commands = dict(list_commands())
    parts = [
        "# Commands\n\n"
        "Every command of `clew`, with its options. `clew COMMAND --help` prints the same. "
        "[The command line](../command-line.md) shows how to work with it.\n\n"
        "Commands that speak with a Temporal server have `--address` and `--namespace`, those for scripts `--json`:\n\n"
        + table(("option", "meaning"), ([f"`{name}`", text] for name, text in COMMON.items()))
    ]
    for group in COMMANDS:
        parts.append(f"## {group}\n")
        for words, command in commands.items():
            if find_group(words, commands) == group:
                parts.append(f"### clew {words}\n\n{_describe(words, command)}")
    return "\n".join(parts)


def list_commands() -> Iterator[tuple[str, Any]]:
    """List the commands by their words, as in `schedule create`."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {word}", each) for word, each in inner.items())


def find_group(words: str, commands: dict[str, Any]) -> str:
    """Find the group of a command in the help."""
    first = words.partition(" ")[0]
    return GROUPS[first][0] if first in GROUPS else str(commands[words].rich_help_panel)


def _describe(words: str, command: Any) -> str:
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    if words == "worker":
        usage, rows = "[OPTIONS]", list(_list_worker_options())
    else:
        context = command.make_context("clew", [], resilient_parsing=True)
        usage = " ".join(filter(None, command.collect_usage_pieces(context))).replace("{", "").replace("}", "")
        rows = list(_list_options(command.params, context))
    parts = [f"```\nclew {words} {usage}".rstrip() + "\n```\n", f"{text}\n"]
    if rows:
        parts.append(table(("option", "meaning"), rows))
    return "\n".join(parts)


def _list_options(params: Iterable[Any], context: Any) -> Iterator[list[str]]:
    for param in params:
        if param.param_type_name != "option" or getattr(param, "hidden", False):
            continue
        names = [*param.opts, *param.secondary_opts]
        if names[0] in COMMON:
            continue
        metavar = "" if param.is_flag else f" {param.metavar or _name_type(param, context)}"
        notes = []
        if param.envvar:
            notes.append(f"Variable: `{param.envvar}`.")
        default = param.default
        if default not in (None, False, (), [], "") and not callable(default) and not param.required:
            notes.append(f"Default: `{getattr(default, 'value', default)}`.")
        meaning = " ".join([" ".join((param.help or "").split()), *notes])
        yield [f"`{', '.join(names)}{metavar}`".replace("|", "\\|"), meaning.replace("|", "\\|")]


def _name_type(param: Any, context: Any) -> str:
    name = str(param.display_type(context)).strip("<>")
    return name if param.type_descriptor.is_choice else name.upper()


def _list_worker_options() -> Iterator[list[str]]:
    for action in make_parser("clew worker")._actions:
        if not isinstance(action, argparse._HelpAction):
            yield [f"`{', '.join(action.option_strings)} {action.metavar}`", " ".join((action.help or "").split())]
