"""The commands that serve: a worker and a codec server (extra `worker`), and all on one machine (extra `local`)."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from clew.cli import _operators as operators
from clew.cli import show
from clew.cli.failures import FAILED, exit_on_error
from clew.cli.hints import find_program
from clew.cli.reach import Misconfigured
from clew.cli.serve import studio_process
from clew.cli.shared_options import TaskQueue, flag, option
from clew.local import StartFailed
from clew.local.development import FOLDER, PORT, STUDIO_PORT, UI_PORT, Development, run_until_interrupted
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.encryption import read_encryption

CODEC_PORT = 8234
CODEC_ORIGINS = ("http://localhost:8233", "http://127.0.0.1:8233")
"""The UI of `clew dev` and of `temporal server start-dev`."""


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
        option(
            "MODULES",
            "Modules that define tools, separated by commas; in the current folder or installed.",
            envvar="CLEW_TOOLS",
        ),
    ] = "",
    agents: Annotated[str, option("MODULES", "Modules that define agents, likewise.", envvar="CLEW_AGENTS")] = "",
    model: Annotated[
        str | None,
        option(
            "PROVIDER:NAME",
            "The model to chat with; its key is in the environment. Default: a small one on this machine.",
        ),
    ] = None,
    port: Annotated[int, option(None, "The port of the Temporal server.", min=1, max=65535)] = PORT,
    ui_port: Annotated[int, option(None, "The port of its web UI.", min=1, max=65535)] = UI_PORT,
    studio_port: Annotated[int, option(None, "The port of the studio.", min=1, max=65535)] = STUDIO_PORT,
    folder: Annotated[Path, option("FOLDER", "Where the sessions are kept, for the next time.")] = FOLDER,
    ephemeral: Annotated[bool, flag("Keep no sessions after the end.", "--ephemeral")] = False,
    as_json: Annotated[bool, flag("Print a JSON object a line, and the worker's log on stderr.", "--json")] = False,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Run a Temporal server, its UI, the studio, a model and a worker here, for tools of the current folder.

    The worker restarts when a *.py file below the current folder changes. Ctrl-C stops everything.
    """
    if model is not None:
        _check_model(model)
    kept = None if ephemeral else folder
    development = Development(
        tools=[name for name in map(str.strip, tools.split(",")) if name],
        agents=agents,
        task_queue=task_queue,
        model=model,
        port=port,
        ui_port=ui_port,
        studio=partial(studio_process, task_queue=task_queue, port=studio_port, folder=kept),
        studio_port=studio_port,
        folder=kept,
        logs_to_stderr=as_json,
        program=find_program(),
    )
    report = _report_json if as_json else typer.echo
    try:
        asyncio.run(run_until_interrupted(development, report))
    except StartFailed as error:
        if as_json:
            show.print_document({"error": {"type": "start_failed", "message": str(error)}}, in_lines=True)
            raise typer.Exit(FAILED) from None
        raise _fail(error) from None
    with suppress(BrokenPipeError):
        report("stopped")


def _report_json(text: str) -> None:
    show.print_document({"message": text}, in_lines=True)


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


def codec_server(
    *,
    host: Annotated[str, option(None, "The address to listen on. Other than loopback: behind TLS only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, option(None, "The port.", min=0, max=65535)] = CODEC_PORT,
    origin: Annotated[
        list[str] | None,
        option(
            "URL",
            "Origin of a Temporal UI that may use the server, exactly; can be repeated. Default: the UI of "
            "`clew dev`.",
            envvar="CLEW_CODEC_ORIGINS",
        ),
    ] = None,
) -> None:
    """Decrypt payloads for the Temporal UI and CLI. The keys are those of CLEW_ENCRYPTION_KEYS.

    Callers need the token in CLEW_CODEC_TOKEN. A browser gets it at the server's page `/`.
    """
    with exit_on_error(as_json=False):
        operators.require_worker_extra()
        try:
            encryption = read_encryption(os.environ)
            if not encryption.is_on:
                raise ValueError("CLEW_ENCRYPTION_KEYS is not set: there is nothing to decrypt with")
            server = operators.CodecServer(
                encryption.codec, os.environ.get("CLEW_CODEC_TOKEN", ""), origin or list(CODEC_ORIGINS)
            )
        except ValueError as error:
            raise Misconfigured(str(error)) from None
        asyncio.run(_serve(server, host, port))


async def _serve(server: operators.CodecServer, host: str, port: int) -> None:
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    try:
        async with operators.serve_http(server, host, port) as bound:
            typer.echo(f"codec server ready: {show.write_address(host, bound)}")
            await stopped.wait()
    except OSError as error:
        raise Misconfigured(f"cannot listen on {host}:{port}: {error.strerror}") from None
