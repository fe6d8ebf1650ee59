"""The commands that serve sessions; they need the extra `worker`."""

from __future__ import annotations

import typer

from clew.cli.failures import FAILED


def worker(context: typer.Context) -> None:
    """Serve sessions, with the tools of modules in the current folder or installed. `clew worker --help` has more."""
    try:
        from clew.worker import main  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from None
    main(context.args, program="clew worker")


def register(app: typer.Typer) -> None:
    """Add the commands. The worker has its own parser of arguments, which `python -m clew.worker` uses too."""
    passing = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=passing)(worker)
