"""The commands that serve sessions: a worker (extra `worker`), and everything on one machine (extra `local`)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from clew.cli import options, show
from clew.cli.failures import FAILED
from clew.cli.groups import SERVE
from clew.cli.hints import find_program
from clew.cli.options import TaskQueue
from clew.local import StartFailed
from clew.local.development import FOLDER, PORT, UI_PORT, Development, run_until_interrupted
from clew_workflows.contract import TASK_QUEUE


def worker(context: typer.Context) -> None:
    """Serve sessions. `clew worker --help` lists its options."""
    try:
        from clew.worker import main  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        raise _fail(error) from None
    main(context.args, program="clew worker")


def dev(
    *,
    tools: Annotated[
        str,
        typer.Option(
            envvar="CLEW_TOOLS",
            metavar="MODULES",
            help="Modules that define tools, separated by commas; in the current folder or installed.",
        ),
    ] = "",
    agents: Annotated[
        str, typer.Option(envvar="CLEW_AGENTS", metavar="MODULES", help="Modules that define agents, likewise.")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PROVIDER:NAME",
            help="The model to chat with; its key is in the environment. Default: a small one on this machine.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of the Temporal server.")] = PORT,
    ui_port: Annotated[int, typer.Option(min=1, max=65535, help="The port of its web UI.")] = UI_PORT,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the sessions are kept, for the next time.")
    ] = FOLDER,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep no sessions after the end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line, and the worker's log on stderr.")
    ] = False,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Run a Temporal server, its UI, a model and a worker on this machine, for tools of the current folder.

    The worker restarts when a *.py file below the current folder changes. Ctrl-C stops everything.
    """
    if model is not None:
        _check_model(model)
    development = Development(
        tools=[name for name in map(str.strip, tools.split(",")) if name],
        agents=agents,
        task_queue=task_queue,
        model=model,
        port=port,
        ui_port=ui_port,
        folder=None if ephemeral else folder,
        logs_to_stderr=as_json,
        program=find_program(),
    )
    report = _report_json if as_json else typer.echo
    try:
        options.run(run_until_interrupted(development, report))
    except StartFailed as error:
        if as_json:
            show.print_document({"error": {"type": "start_failed", "message": str(error)}}, in_lines=True)
            raise typer.Exit(FAILED) from None
        raise _fail(error) from None
    with suppress(BrokenPipeError):
        report("stopped")


def _report_json(text: str) -> None:
    show.print_document({"message": text}, in_lines=True)


def register(app: typer.Typer) -> None:
    """Add the commands. The worker has its own parser of arguments, which `python -m clew.worker` uses too."""
    passing = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=passing, rich_help_panel=SERVE)(worker)
    app.command(rich_help_panel=SERVE)(dev)


def _check_model(model: str) -> None:
    """Exit with one line if the environment does not configure the model's provider."""
    try:
        from clew.worker import check_model  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        raise _fail(error) from None
    if problem := check_model(os.environ, model):
        raise typer.BadParameter(problem, param_hint="--model")


def _fail(error: Exception) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(FAILED)
