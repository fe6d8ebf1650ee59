"""The process of `clew serve`: its HTTP server and its end, its log lines, and its traces."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from temporalio.client import Interceptor
from temporalio.runtime import Runtime

from clew.serve.gate import BUCKETS
from clew.serve.streams import Drain
from clew.session import connection
from clew.session.connection import names_collector
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.extras import ExtraMissing

log = logging.getLogger("clew.serve")

LogFormat = Literal["text", "json"]
KEEP_ALIVE_SECONDS = 65
"""Seconds after which an idle connection is closed: longer than the usual minute of a proxy before it."""
MAX_HEADER_BYTES = 65_536
"""Most bytes of a request's head that has not come completely."""
NOTICE_SHARE = 4
"""One part in so many of the drain's time, the process still takes requests: load balancers come to notice."""
LAST_SECONDS = 2
"""Seconds that responses have to end after the drain."""


class Server(uvicorn.Server):
    """Serves an application until SIGTERM or SIGINT, and then drains it. A second signal ends the process at once.

    At SIGTERM the process is not ready any more, and goes on for a quarter of `drain_seconds`: load balancers come to
    send requests to others. Then, or at once at SIGINT, streams end with a hint, new requests are refused with 503,
    and others have the rest of the time to end.
    """

    def __init__(
        self, app: FastAPI, *, host: str, port: int, drain_seconds: float, on_ready: Callable[[int], None]
    ) -> None:
        """Make a server, which `serve` runs. `on_ready` gets the port once the server listens."""
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                # The address of a caller is not used, so that no header can forge it.
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_SECONDS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                lifespan="on",
            )
        )
        self._app, self._drain_seconds, self._on_ready = app, drain_seconds, on_ready
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[Any] | None = None) -> None:
        """Serve until the end of the drain."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started:
            # A collection, which stops everything, looks at what requests have made alone.
            gc.freeze()
            self._on_ready(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain at the first signal, and end at the second one."""
        self._signals += 1
        if self._loop is None:
            self.should_exit = True
        elif self._signals == 1:
            notice_seconds = 0 if sig == signal.SIGINT else self._drain_seconds / NOTICE_SHARE
            self._loop.call_soon_threadsafe(self._begin_end, notice_seconds)
        else:
            self._loop.call_soon_threadsafe(self._end_at_once)

    def _begin_end(self, notice_seconds: float) -> None:
        self._ending = asyncio.create_task(self._end(notice_seconds))

    def _end_at_once(self) -> None:
        drain: Drain = self._app.state.drain
        drain.begin()
        self.config.timeout_graceful_shutdown = 0
        self.should_exit = self.force_exit = True

    async def _end(self, notice_seconds: float) -> None:
        drain: Drain = self._app.state.drain
        drain.announce()
        log.info("the process is about to end")
        await asyncio.sleep(notice_seconds)
        drain.begin()
        for client in list(self.server_state.connections):
            # The connection closes with its response: the next request shall find another process.
            client.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds - notice_seconds):
                await drain.wait_until_idle()
        self.should_exit = True


# What operators see.


def make_runtime(metrics_address: str | None) -> Runtime:
    """Make the runtime of the connection. With an address it serves the metrics of the SDK and of the service.

    Raises:
        InvalidInput: The port cannot be opened.
    """
    try:
        return connection.make_runtime(metrics_address, BUCKETS)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def log_to_stderr(log_format: LogFormat) -> None:
    """Log to standard error. Exceptions are logged without their messages, which may hold texts of conversations."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # It logs the begin and the end of each session.
    logging.getLogger("mcp").setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """Formats a record as a line, with its fields as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record in one line."""
        fields = [f"{name}={value}" for name, value in list_fields(record).items()]
        line = " ".join([self.formatMessage(_prepare(self, record)), *fields])
        return line.replace("\n", "\\n").replace("\r", "\\r")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record: time, level, logger and message, and its fields."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **list_fields(record),
        }
        return json.dumps(line, default=str)


def _prepare(formatter: logging.Formatter, record: logging.LogRecord) -> logging.LogRecord:
    record.message = record.getMessage()
    record.asctime = formatter.formatTime(record)
    return record


def list_fields(record: logging.LogRecord) -> dict[str, Any]:
    """List the fields of a record: those that it names, and the type of its exception."""
    named = getattr(record, "fields", None)
    fields = dict(named) if isinstance(named, Mapping) else {}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = record.exc_info[0].__name__
    return fields


def make_interceptors(environ: Mapping[str, str]) -> list[Interceptor]:
    """Make the interceptors of the connection: with a collector in the `OTEL_…` variables, those that make traces.

    Raises:
        ExtraMissing: The extra `telemetry` is not installed.
    """
    if not names_collector(environ):
        return []
    try:
        from clew.serve import tracing  # noqa: PLC0415 - the extra may be missing
    except ModuleNotFoundError as error:
        raise ExtraMissing(connection.COLLECTOR, "telemetry") from error
    return tracing.start(environ)


def add_spans(app: FastAPI) -> None:
    """Make a span for each request of an application. It needs the extra `telemetry`."""
    from clew.serve.tracing import Spans  # noqa: PLC0415 - the extra may be missing

    app.add_middleware(Spans)
