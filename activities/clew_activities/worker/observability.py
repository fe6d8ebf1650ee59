"""What operators see of a worker process: logs without secrets, metrics, the depth of its task queues, traces."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue, TaskQueueStats
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.service import RPCError

from clew.session.connection import COLLECTOR, names_collector
from clew_activities.providers import Redaction
from clew_activities.worker.environment import Work, WorkerSettings
from clew_workflows.contract.extras import ExtraMissing
from clew_workflows.contract.names import name_model_queue, name_provider_queue, name_tool_queue

if TYPE_CHECKING:
    from clew_activities.telemetry.spans import Spans

LogFormat = Literal["text", "json"]
INTERVAL_SECONDS = 10.0
"""Seconds between two requests to the server for the depth of the queues."""
TIMEOUT = timedelta(seconds=5)

WORKFLOW = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITY = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
Queue = tuple[str, "TaskQueueType.ValueType"]


@dataclass(frozen=True, kw_only=True)
class ObservabilitySettings:
    """The settings of what operators see of a worker process.

    Attributes:
        log_format: How log lines are written.
        metrics_address: Where Prometheus reads the metrics, `IP:PORT`; None: nowhere.
        health_address: Where `/live` and `/ready` are answered: IP and port; None: nowhere.
    """

    log_format: LogFormat
    metrics_address: str | None
    health_address: tuple[str, int] | None


def read_observability_settings(environ: Mapping[str, str]) -> ObservabilitySettings:
    """Read `CLEW_LOG_FORMAT`, `CLEW_METRICS_ADDRESS` and `CLEW_HEALTH_ADDRESS`.

    Raises:
        ValueError: A value cannot be used.
    """
    metrics = _read_address(environ, "CLEW_METRICS_ADDRESS")
    return ObservabilitySettings(
        log_format=read_log_format(environ),
        metrics_address=_join(*metrics) if metrics else None,
        health_address=_read_address(environ, "CLEW_HEALTH_ADDRESS"),
    )


def read_log_format(environ: Mapping[str, str]) -> LogFormat:
    """Read `CLEW_LOG_FORMAT`: `text` or `json`; `text` if it is not set.

    Raises:
        ValueError: It has another value.
    """
    value = environ.get("CLEW_LOG_FORMAT") or "text"
    for known in get_args(LogFormat):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"CLEW_LOG_FORMAT must be text or json, not {value[:50]!r}")


def _read_address(environ: Mapping[str, str], variable: str) -> tuple[str, int] | None:
    text = environ.get(variable)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ip_address(host)
    except ValueError:
        host = ""
    if not (host and port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise ValueError(f"{variable} must be an IP address and a port, as in 0.0.0.0:9464, not {text[:50]!r}")
    return host, int(port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def log_without_secrets(redaction: Redaction, log_format: LogFormat = "text", *, hides_texts: bool = False) -> None:
    """Log to standard error, through a formatter that redacts."""
    handler = logging.StreamHandler()
    formatter = JsonFormatter if log_format == "json" else RedactingFormatter
    handler.setFormatter(formatter(redaction, hides_texts=hides_texts))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)


class RedactingFormatter(logging.Formatter):
    """Formats log records without secrets: messages, arguments, exceptions with all their causes, stacks.

    A record's fields (`extra={"fields": {…}}`) follow the message as `name=value`. With `hides_texts`, exceptions are
    formatted without their messages, which may hold texts of conversations.
    """

    def __init__(self, redaction: Redaction, *, hides_texts: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._redaction = redaction
        self._hides_texts = hides_texts

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Format the line itself, without an exception."""
        fields = _get_fields(record)
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])

    def format(self, record: logging.LogRecord) -> str:
        """Format the record and redact the text."""
        # Another handler may have kept its own text of the exception here.
        record.exc_text = None
        return self._redaction.redact_text(super().format(record))

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Format an exception with its causes."""
        if not self._hides_texts or ei[1] is None:
            return super().formatException(ei)
        parts: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None:
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            parts.append("".join(traceback.format_tb(error.__traceback__)) + f"{name}: (the message is not logged)")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\ncaused:\n".join(reversed(parts))


class JsonFormatter(RedactingFormatter):
    """Formats each record as one line with a JSON object, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record: time, level, logger and message, its fields, and the exception if there is one."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_get_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(self._redaction.redact_value(line), ensure_ascii=False, default=str)


def _get_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def list_queues(settings: WorkerSettings) -> list[Queue]:
    """List the queues of sessions, of model calls, also those of limited providers, and of tool calls."""
    task_queue = settings.task_queue
    limited = [name_provider_queue(task_queue, provider) for provider in sorted(settings.rate_limits)]
    queues: dict[Work, list[Queue]] = {
        "sessions": [(task_queue, WORKFLOW), (task_queue, ACTIVITY)],
        "models": [(name, ACTIVITY) for name in (name_model_queue(task_queue), *limited)],
        "tools": [(name_tool_queue(task_queue), ACTIVITY)],
    }
    return [queue for work in settings.serves for queue in queues[work]]


@asynccontextmanager
async def report_backlog(client: Client, meter: MetricMeter, queues: Sequence[Queue]) -> AsyncIterator[None]:
    """Report how many tasks of each queue wait for a worker, while the context is open.

    Every worker of a queue reports the number of the whole queue.
    """
    task = asyncio.create_task(_report(client, meter, queues))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _report(client: Client, meter: MetricMeter, queues: Sequence[Queue]) -> None:
    gauge = meter.create_gauge("clew_task_queue_backlog", "Tasks of a task queue that wait for a worker.")
    age = meter.create_gauge_float(
        "clew_task_queue_backlog_age_seconds", "How long the oldest task of a queue has waited for a worker."
    )
    while queues:
        for name, kind in queues:
            backlog = await _fetch_backlog(client, name, kind)
            if backlog is not None:
                labels = {"queue": name, "kind": "workflow" if kind == WORKFLOW else "activity"}
                gauge.set(backlog.approximate_backlog_count, labels)
                age.set(backlog.approximate_backlog_age.ToMilliseconds() / 1000, labels)
        await asyncio.sleep(INTERVAL_SECONDS)


async def _fetch_backlog(client: Client, name: str, kind: TaskQueueType.ValueType) -> TaskQueueStats | None:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=name), task_queue_type=kind, report_stats=True
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request, timeout=TIMEOUT)
    except RPCError:
        # The connection is what `/ready` reports.
        return None
    return answer.stats if answer.HasField("stats") else None


def read_spans(environ: Mapping[str, str]) -> Spans | None:
    """Make the spans of this process if the variables of OpenTelemetry name a collector; None: they do not.

    Raises:
        ExtraMissing: The extra `telemetry` is not installed.
    """
    if not names_collector(environ):
        return None
    try:
        spans = import_module("clew_activities.telemetry.spans")
    except ModuleNotFoundError as error:
        raise ExtraMissing(COLLECTOR, "telemetry") from error
    made: Spans = spans.make_spans(environ)
    return made
