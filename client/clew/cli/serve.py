"""`clew serve`, the service over HTTP, and `clew serve-key`, which makes a key for it (extra `serve`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clew.cli import show
from clew.cli.command import Address, Namespace
from clew.cli.failures import exit_on_error
from clew.cli.options import TaskQueue
from clew.cli.reach import Misconfigured, Target
from clew.local.child import LOOPBACK, StartFailed, child_process
from clew.local.temporal import TemporalServer
from clew.session.connection import Clew
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.errors import InvalidInput

HOST = "127.0.0.1"
PORT = 8080
DRAIN_SECONDS = 20.0
MCP_SESSIONS = 1000
STUDIO_KEY = "studio.key"
"""The file of the studio's key in the folder of `clew dev`: the address of the studio stays the same."""
STUDIO_START_SECONDS = 30.0


def serve(
    *,
    keys: Annotated[
        Path | None,
        typer.Option(
            envvar="CLEW_SERVE_KEYS", metavar="FILE", help="The file of keys: `clew serve-key` prints its rows."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            envvar="CLEW_SERVE_HOST",
            help="The address to listen on. Other than loopback: behind a proxy with TLS only.",
        ),
    ] = HOST,
    port: Annotated[int, typer.Option(envvar="CLEW_SERVE_PORT", min=0, max=65535, help="The port.")] = PORT,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="URL",
            help="Origin whose pages may call the service; may be repeated. Default: none.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(envvar="CLEW_METRICS_ADDRESS", metavar="IP:PORT", help="Where Prometheus reads the metrics."),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(envvar="CLEW_LOG_FORMAT", help="How log lines are written.")
    ] = "text",
    drain_seconds: Annotated[
        float,
        typer.Option(
            envvar="CLEW_SERVE_DRAIN_SECONDS", min=0, help="Seconds that requests have to end after SIGTERM."
        ),
    ] = DRAIN_SECONDS,
    mcp_sessions: Annotated[
        int,
        typer.Option(
            envvar="CLEW_SERVE_MCP_SESSIONS",
            min=0,
            help="Most sessions of MCP clients of the protocols before 2026-07-28; 0: none.",
        ),
    ] = MCP_SESSIONS,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Serve sessions over HTTP, to callers with a key. It needs no provider's key and no store."""
    with exit_on_error(as_json=False):
        _require_extra()
        if keys is None:
            raise Misconfigured("name the file of keys with --keys or CLEW_SERVE_KEYS: `clew serve-key` makes a key")
        target = Target(address, namespace, task_queue)
        settings = {
            "cors_origins": tuple(origin or ()),
            "task_queue": task_queue,
            "max_mcp_sessions": mcp_sessions,
        }
        try:
            asyncio.run(_serve(keys, target, settings, host, port, metrics, log_format, drain_seconds))
        except (InvalidInput, ValueError) as error:
            raise Misconfigured(str(error)) from None


async def _serve(  # noqa: PLR0917 - one caller
    keys: Path,
    target: Target,
    settings: dict[str, Any],
    host: str,
    port: int,
    metrics: str | None,
    log_format: Literal["text", "json"],
    drain_seconds: float,
) -> None:
    from clew.serve import Keys, ServeSettings, make_app  # noqa: PLC0415 - the extra may be missing
    from clew.serve.running import (  # noqa: PLC0415
        Server,
        add_spans,
        log_to_stderr,
        make_interceptors,
        make_runtime,
    )

    known = Keys.load(keys)
    log_to_stderr(log_format)
    runtime, interceptors = make_runtime(metrics), make_interceptors(os.environ)
    clew = await Clew.connect(
        target.address,
        namespace=target.namespace,
        task_queue=target.task_queue,
        runtime=runtime,
        interceptors=interceptors,
    )
    app = make_app(known, clew=clew, settings=ServeSettings(**settings), meter=runtime.metric_meter)
    if interceptors:
        add_spans(app)
    shown = f"[{host}]" if ":" in host else host
    server = Server(
        app,
        host=host,
        port=port,
        drain_seconds=drain_seconds,
        on_ready=lambda bound: typer.echo(f"serving: http://{shown}:{bound}"),
    )
    await server.serve()


def serve_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key, for logs.", show_default=False)],
    *,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="The tenant, whose sessions it reaches.", show_default=False)
    ],
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An agent that it may use; may be repeated. Default: all."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROVIDER:NAME",
            help="A model that it may name, or PROVIDER:*; may be repeated. Default: all, or none with --agent.",
        ),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="It may set what agents fix, such as tools and prompts.")
    ] = False,
    requests_per_minute: Annotated[int, typer.Option(min=1, help="The most requests a minute.")] = 600,
    max_open_sessions: Annotated[
        int | None, typer.Option(min=1, help="The most open sessions of the tenant. Default: no limit.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Make a key for `clew serve`. It is printed once, on stderr, and its row for the file of keys on stdout."""
    with exit_on_error(as_json):
        _require_extra()
        from pydantic import ValidationError  # noqa: PLC0415

        from clew.serve.access import Key, compute_hash, make_token  # noqa: PLC0415 - the extra may be missing
        from clew_workflows.contract.invalid import describe_problems  # noqa: PLC0415

        token = make_token()
        try:
            key = Key(
                name=name,
                hash=compute_hash(token),
                tenant=tenant,
                agents=tuple(agent) if agent else None,
                models=tuple(model) if model else None,
                operator=operator,
                requests_per_minute=requests_per_minute,
                max_open_sessions=max_open_sessions,
            )
        except ValidationError as error:
            raise Misconfigured(describe_problems(error, Key)) from None
        row = key.model_dump(mode="json", exclude_defaults=True)
        if as_json:
            show.print_document({"key": token, "row": row})
        else:
            # The row can be appended to the file, where the key must not be.
            typer.echo(f"the key, which nothing shows again: {token}", err=True)
            typer.echo(format_row(row))


def format_row(row: dict[str, Any]) -> str:
    """Format a row of the file of keys in TOML. Its texts have no character that TOML would escape otherwise."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in row.items()]
    return "\n".join(["[[key]]", *lines])


def _require_extra() -> None:
    """Check that the extra `serve` is installed.

    Raises:
        Misconfigured: It is not.
    """
    try:
        import fastapi  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ImportError as error:
        raise Misconfigured(f"the service needs the extra `serve`: pip install 'clew[serve]' ({error})") from None


@asynccontextmanager
async def studio_process(
    server: TemporalServer, *, task_queue: str, port: int, folder: Path | None
) -> AsyncIterator[str]:
    """Run `clew serve` beside a server of one machine, with a key that reaches all sessions.

    Yields the address of the studio, which has the key in its fragment: a browser sends that to no server.

    Args:
        server: The Temporal server.
        task_queue: The task queue of new sessions.
        port: The port on loopback.
        folder: Keeps the key; None: it is made anew.

    Raises:
        StartFailed: The service did not start, or the extra `serve` is not installed.
    """
    try:
        _require_extra()
    except Misconfigured as missing:
        raise StartFailed(str(missing)) from None
    from clew.serve.access import compute_hash  # noqa: PLC0415 - the extra may be missing
    from clew.serve.tenants import ALL_TENANTS  # noqa: PLC0415 - the extra may be missing

    token = _read_token(folder)
    row = {"name": "studio", "hash": compute_hash(token), "tenant": ALL_TENANTS, "requests_per_minute": 100_000}
    with tempfile.NamedTemporaryFile("w", prefix="clew-studio-", suffix=".toml") as keys:
        keys.write(format_row(row))
        keys.flush()
        command = [sys.executable, "-m", "clew.cli", "serve", "--keys", keys.name, "--port", str(port)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        settings = {
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": server.namespace,
            "CLEW_TASK_QUEUE": task_queue,
            "PYTHONUNBUFFERED": "1",
        }
        async with child_process("studio", command, env={**inherited, **settings}) as child:

            async def is_ready() -> bool:
                return "serving:" in child.log.read_text(errors="replace")

            await child.wait_until(is_ready, STUDIO_START_SECONDS)
            yield f"http://{LOOPBACK}:{port}/studio/#key={token}"


def _read_token(folder: Path | None) -> str:
    """Read the studio's key from a folder, or make it."""
    from clew.serve.access import make_token  # noqa: PLC0415 - the extra may be missing

    if folder is None:
        return make_token()
    file = folder / STUDIO_KEY
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(make_token())
    return file.read_text().strip()
