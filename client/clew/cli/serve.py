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
from clew.cli.failures import exit_on_error
from clew.cli.reach import Misconfigured
from clew.cli.shared_options import Address, AsJson, Namespace, TaskQueue, argument, flag, option
from clew.local.child import LOOPBACK, StartFailed, child_process
from clew.local.temporal import TemporalServer
from clew.session.connection import Clew
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.extras import name_install

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
        Path | None, option("FILE", "The file of keys: `clew serve-key` prints its rows.", envvar="CLEW_SERVE_KEYS")
    ] = None,
    host: Annotated[
        str,
        option(
            None,
            "The address to listen on. Other than loopback: behind a proxy with TLS only.",
            envvar="CLEW_SERVE_HOST",
        ),
    ] = HOST,
    port: Annotated[int, option(None, "The port.", envvar="CLEW_SERVE_PORT", min=0, max=65535)] = PORT,
    origin: Annotated[
        list[str] | None,
        option("URL", "Origin whose pages may call the service; may be repeated. Default: none.", "--cors-origin"),
    ] = None,
    metrics: Annotated[
        str | None, option("IP:PORT", "Where Prometheus reads the metrics.", envvar="CLEW_METRICS_ADDRESS")
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], option(None, "How log lines are written.", envvar="CLEW_LOG_FORMAT")
    ] = "text",
    drain_seconds: Annotated[
        float,
        option(
            None,
            "Seconds that requests have to end after SIGTERM. In the first quarter it takes new ones.",
            envvar="CLEW_SERVE_DRAIN_SECONDS",
            min=0,
        ),
    ] = DRAIN_SECONDS,
    mcp_sessions: Annotated[
        int,
        option(
            None,
            "Most sessions of MCP clients of the protocols before 2026-07-28; 0: none.",
            envvar="CLEW_SERVE_MCP_SESSIONS",
            min=0,
        ),
    ] = MCP_SESSIONS,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Serve sessions over HTTP, to callers with a key. It needs no provider's key and no store."""

    async def run(file: Path) -> None:
        from clew.serve import Keys, ServeSettings, make_app, service_process  # noqa: PLC0415 - the extra may be missing

        known = Keys.load(file)
        service_process.log_to_stderr(log_format)
        runtime, interceptors = service_process.make_runtime(metrics), service_process.make_interceptors(os.environ)
        clew = await Clew.connect(
            address, namespace=namespace, task_queue=task_queue, runtime=runtime, interceptors=interceptors
        )
        settings = ServeSettings(
            cors_origins=tuple(origin or ()), task_queue=task_queue, max_mcp_sessions=mcp_sessions
        )
        app = make_app(known, clew=clew, settings=settings, meter=runtime.metric_meter)
        if interceptors:
            service_process.add_spans(app)

        def report_ready(bound: int) -> None:
            typer.echo(f"serving: {show.write_address(host, bound)}")

        server = service_process.Server(app, host=host, port=port, drain_seconds=drain_seconds, on_ready=report_ready)
        await server.serve()

    with exit_on_error(as_json=False):
        _require_extra()
        if keys is None:
            raise Misconfigured("name the file of keys with --keys or CLEW_SERVE_KEYS: `clew serve-key` makes a key")
        try:
            asyncio.run(run(keys))
        except (InvalidInput, ValueError) as error:
            raise Misconfigured(str(error)) from None


def serve_key(
    name: Annotated[str, argument("NAME", "The name of the key, for logs.")],
    *,
    tenant: Annotated[str, option("NAME", "The tenant, whose sessions it reaches.", show_default=False)],
    agent: Annotated[
        list[str] | None, option("NAME", "An agent that it may use; may be repeated. Default: all.")
    ] = None,
    model: Annotated[
        list[str] | None,
        option(
            "PROVIDER:NAME",
            "A model that it may name, or PROVIDER:*; may be repeated. Default: all, or none with --agent.",
        ),
    ] = None,
    operator: Annotated[bool, flag("It may set what agents fix, such as tools and prompts.", "--operator")] = False,
    requests_per_minute: Annotated[int, option(None, "The most requests a minute.", min=1)] = 600,
    max_open_sessions: Annotated[
        int | None, option(None, "The most open sessions of the tenant. Default: no limit.", min=1)
    ] = None,
    as_json: AsJson = False,
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
        raise Misconfigured(f"the service needs the extra `serve`: {name_install('serve')} ({error})") from None


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
    from clew.serve.error_words import ALL_TENANTS  # noqa: PLC0415 - the extra may be missing

    token = _read_token(folder)
    row = {"name": "studio", "hash": compute_hash(token), "tenant": ALL_TENANTS, "requests_per_minute": 100_000}
    with tempfile.NamedTemporaryFile("w", prefix="clew-studio-", suffix=".toml") as keys:
        keys.write(format_row(row))
        keys.flush()
        # Nothing balances load before it.
        end = ("--drain-seconds", "0")
        command = [sys.executable, "-m", "clew.cli", "serve", "--keys", keys.name, "--port", str(port), *end]
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
