"""The command line: its commands, by the groups of `clew --help`. The other modules of the package do the work."""

from __future__ import annotations

import inspect
import io
import logging
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clew.cli import (
    blob_commands,
    control,
    hints,
    history_import,
    listing,
    offline,
    reading,
    report,
    schedule_commands,
    serve,
    serve_commands,
    talk,
)
from clew.cli.shared_options import flag

SKILL = "SKILL.md"
"""The file of the package from which a coding agent learns to write an agent and its test."""


def skill() -> None:
    """Print what a coding agent needs to write an agent with a tool and a test: a SKILL.md."""
    typer.echo(files("clew").joinpath(SKILL).read_text(encoding="utf-8"), nl=False)


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Talk": (talk.ask, talk.chat),
    "Read and watch": (
        reading.status,
        reading.transcript,
        reading.context,
        reading.entries,
        reading.follow,
        listing.top,
        listing.sessions,
        report.report,
        report.compare,
    ),
    "Control a run": (
        control.steer,
        control.inject,
        control.cancel,
        control.configure,
        control.approve,
        control.deny,
        control.submit,
    ),
    "Change what a model sees": (
        control.replace,
        control.switch,
        control.reset,
        control.summarize,
        control.compact,
        control.expand,
        control.pin,
        control.unpin,
    ),
    "Copy, archive and delete sessions": (
        control.fork,
        control.hibernate,
        control.delete,
        control.checkpoint,
        control.restore,
        offline.export,
        offline.import_,
        history_import.import_history,
    ),
    "Serve": (serve_commands.worker, serve_commands.dev, serve.serve, serve.serve_key, serve_commands.codec_server),
    "Learn": (skill,),
    "Operate": (listing.setup_namespace, offline.evaluate, offline.audit, offline.recover, offline.rekey),
}
"""The commands by their groups, in the order of the help."""
OPERATE = "Operate"
GROUPS: dict[str, tuple[str, str, tuple[Callable[..., None], ...]]] = {
    "blob": (
        "Read and watch",
        "Store, list and read the images and files of a session.",
        (blob_commands.put, blob_commands.get, blob_commands.list_),
    ),
    "schedule": (
        "Talk",
        "Send messages to sessions by cron or in intervals.",
        (
            schedule_commands.create,
            schedule_commands.list_,
            schedule_commands.show,
            schedule_commands.pause,
            schedule_commands.resume,
            schedule_commands.trigger,
            schedule_commands.update,
            schedule_commands.delete,
        ),
    ),
    "archive": (OPERATE, "Check a session's archive.", (offline.verify,)),
}
"""The commands that have commands: their group, their help and their commands."""


class GroupedCommands(TyperGroup):
    """A command line whose help lists its commands by their groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group. typer does so only with its markup, which would read the user's text."""
        commands = {name: self.commands[name] for name in self.list_commands(ctx)}
        width = max(map(len, commands))
        room = formatter.width - 6 - width
        for group in COMMANDS:
            rows = [
                (f"{name:{width}}", command.get_short_help_str(room))
                for name, command in commands.items()
                if getattr(command, "rich_help_panel", None) == group
            ]
            with formatter.section(group):
                formatter.write_dl(rows)


app = typer.Typer(
    help="Durable LLM-agent sessions on Temporal.",
    cls=GroupedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help and errors quote the user's text, which is not markup.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def clew(version_wanted: Annotated[bool, flag("Print the versions.", "--version")] = False) -> None:
    """Durable LLM-agent sessions on Temporal."""
    # The commands print what the client logs, in their own words.
    logging.getLogger("clew").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Escape characters that the stream's encoding lacks: they must not end the command.
            stream.reconfigure(errors="backslashreplace")
    if version_wanted:
        python = platform.python_version()
        typer.echo(f"clew {version('clew')} (temporalio {version('temporalio')}, Python {python})")
        raise typer.Exit


def _register() -> None:
    # The worker has a parser of its own, which `python -m clew.worker` uses too.
    passing = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for group, commands in COMMANDS.items():
        for command in commands:
            name = command.__name__.strip("_").replace("_", "-")
            settings = passing if command is serve_commands.worker else None
            app.command(name, context_settings=settings, rich_help_panel=group)(command)
            hints.remember_options(name, inspect.signature(command).parameters)
    hints.remember_options("worker", ("task_queue",))
    for name, (group, purpose, commands) in GROUPS.items():
        group_app = typer.Typer(help=purpose, no_args_is_help=True, rich_markup_mode=None)
        for command in commands:
            verb = command.__name__.strip("_")
            group_app.command(verb)(command)
            hints.remember_options(f"{name} {verb}", inspect.signature(command).parameters)
        app.add_typer(group_app, name=name, rich_help_panel=group)


_register()
