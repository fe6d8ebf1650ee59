"""The command `clew codec-server` (extra `worker`)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import typer

from clew.cli import _operators as operators
from clew.cli import options
from clew.cli.failures import exit_on_error
from clew.cli.reach import Misconfigured
from clew_workflows.encryption import read_encryption

PORT = 8234
ORIGINS = ("http://localhost:8233", "http://127.0.0.1:8233")
"""The UI of `clew dev` and of `temporal server start-dev`."""


def codec_server(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on. Other than loopback: behind TLS only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port.")] = PORT,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            envvar="CLEW_CODEC_ORIGINS",
            metavar="URL",
            help="Origin of a Temporal UI that may use the server, exactly; can be repeated. Default: the UI of "
            "`clew dev`.",
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
                encryption.codec, os.environ.get("CLEW_CODEC_TOKEN", ""), origin or list(ORIGINS)
            )
        except ValueError as error:
            raise Misconfigured(str(error)) from None
        options.run(_serve(server, host, port))


async def _serve(server: operators.CodecServer, host: str, port: int) -> None:
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    try:
        async with operators.serve_http(server, host, port) as bound:
            shown = f"[{host}]" if ":" in host else host
            typer.echo(f"codec server ready: http://{shown}:{bound}")
            await stopped.wait()
    except OSError as error:
        raise Misconfigured(f"cannot listen on {host}:{port}: {error.strerror}") from None
