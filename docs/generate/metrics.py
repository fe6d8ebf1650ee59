"""The reference of metrics, spans and alerts. A test compares their names with those of the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from clew_activities.telemetry.metrics import BUCKETS, MAX_LABEL_VALUES
from clew_activities.worker.observability import INTERVAL_SECONDS
from docs.generate.tables import table

RULES = Path(__file__).parents[2] / "deploy" / "prometheus-rules.yaml"

METRICS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("clew_turns_total", "counter", ("status", "reason"), "requests that have ended; `reason` is the termination reason"),
    ("clew_turn_seconds", "histogram", ("status",), "time of a request, without waits for people"),
    (
        "clew_model_call_seconds", "histogram", ("provider", "model"),
        "time of an attempt of a model call that has answered",
    ),
    (
        "clew_model_first_token_seconds", "histogram", ("provider", "model"),
        "time from the request to the provider until the reply began",
    ),
    (
        "clew_model_tokens_total", "counter", ("provider", "model", "kind"),
        "tokens as the provider reported them: `input`, `output`; `cached_input` and `written_input` are parts of `input`",
    ),
    (
        "clew_model_cost_usd", "histogram", ("provider", "model"),
        "cost of a call whose price is known; `clew_model_cost_usd_sum` is what was spent",
    ),
    (
        "clew_model_errors_total", "counter", ("provider", "model", "type"),
        "attempts of model calls that have failed, by the type of the error",
    ),
    ("clew_retries_total", "counter", ("activity_type", "type"), "attempts that have failed and are repeated"),
    (
        "clew_tool_call_seconds", "histogram", ("tool", "outcome"),
        "time of an attempt of a tool call: `ok`, `error` (a result that says so), `failed`",
    ),
    (
        "clew_archive_seconds", "histogram", ("activity_type", "outcome"),
        "time of an attempt to read or write the archive: `ok`, `failed`",
    ),
    ("clew_rollovers_total", "counter", (), "sessions that have continued in a new workflow run"),
    (
        "clew_task_queue_backlog", "gauge", ("queue", "kind"),
        f"tasks that wait for a worker, every {INTERVAL_SECONDS:g} seconds; each worker reports the whole queue: use `max`",
    ),
    (
        "clew_task_queue_backlog_age_seconds", "gauge", ("queue", "kind"),
        "how long the oldest of them has waited: seconds mean that sessions wait for a worker that is behind",
    ),
)  # fmt: skip
"""The metrics of workers: name, type, labels, meaning."""
SERVICE_METRICS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "clew_serve_request_seconds",
        "histogram",
        ("method", "route", "status", "key"),
        "time of a request until its response has ended",
    ),
    ("clew_serve_active_requests", "gauge", (), "requests that are being answered"),
    ("clew_serve_open_streams", "gauge", (), "streams of server-sent events that are open"),
)
"""The metrics of `clew serve`."""

_USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_CALL = (
    "gen_ai.operation.name", "gen_ai.conversation.id", "gen_ai.provider.name", "gen_ai.request.model",
    "gen_ai.request.stream", "gen_ai.request.max_tokens", "gen_ai.request.temperature", "gen_ai.request.top_p",
    "gen_ai.response.finish_reasons", *_USAGE, "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens", "clew.cost_usd", "clew.provider_tools.called",
)  # fmt: skip
SPANS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "`invoke_agent AGENT`", "the caller's span, or the turn that has started the subagent",
        (
            "gen_ai.operation.name", "gen_ai.conversation.id", "gen_ai.agent.name", *_USAGE, "clew.request.id",
            "clew.status", "clew.reason", "error.type",
        ),
    ),
    ("`chat MODEL`", "the turn", (*_CALL, "clew.request.id", "clew.run.id", "clew.call.id", "clew.attempt", "error.type")),
    (
        "`chat MODEL` of a summary",
        "the caller's span if it asked for the summary, or else the turn before it",
        (*_CALL[:6], *_USAGE, "clew.summary.id", "clew.attempt", "error.type"),
    ),
    (
        "`execute_tool TOOL`", "the turn",
        (
            "gen_ai.operation.name", "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.tool.call.id",
            "gen_ai.tool.type", "clew.request.id", "clew.run.id", "clew.call.id", "clew.attempt", "error.type",
        ),
    ),
)  # fmt: skip
"""The spans of workers: name, parent, attributes."""
TEXTS = ("gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
"""The attributes that spans have only where texts are shown."""


def make_page() -> str:
    """Make the page."""
    return (
        "# Metrics, spans and alerts\n\n"
        "What workers and `clew serve` tell Prometheus and OpenTelemetry. [Operations](../operations.md) says how to "
        "turn it on.\n\n"
        "## Metrics of a worker\n\n"
        f"{_make_table(METRICS)}\n"
        "`CLEW_METRICS_ADDRESS` serves them, and those of Temporal's SDK. Times are in seconds. `namespace` and "
        "`task_queue` are labels of all metrics but the queue's. No label is an id of a session, and a process keeps "
        f"at most {MAX_LABEL_VALUES} values of `provider`, `model`, `tool` and `type` each: later ones are counted as "
        "`other`. A replay counts nothing again.\n\n"
        "The buckets of the histograms (`clew_activities.telemetry.metrics.BUCKETS`):\n\n"
        + table(("histogram", "upper bounds"), ([f"`{name}`", _write(bounds)] for name, bounds in BUCKETS.items()))
        + "\n## Metrics of clew serve\n\n"
        f"{_make_table(SERVICE_METRICS)}\n"
        "## Spans\n\n"
        + table(
            ("span", "parent", "attributes"),
            ([name, parent, ", ".join(f"`{one}`" for one in attributes)] for name, parent, attributes in SPANS),
        )
        + "\nEach attempt of a call or a summary is a span. An attribute whose value is not known is left out. With "
        "`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true` spans have texts, too: "
        f"{', '.join(f'`{one}`' for one in TEXTS)}.\n\n"
        "## Alerts\n\n"
        "The rules of `deploy/prometheus-rules.yaml`, for the scrape job `clew`:\n\n"
        + table(("alert", "for", "severity", "expression"), _list_alerts())
    )


def _make_table(metrics: tuple[tuple[str, str, tuple[str, ...], str], ...]) -> str:
    rows = (
        [f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), meaning]
        for name, kind, labels, meaning in metrics
    )
    return table(("metric", "type", "labels", "meaning"), rows)


def _write(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)


def _list_alerts() -> Iterator[list[str]]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            expression = " ".join(rule["expr"].split()).replace("|", "\\|")
            yield [f"`{rule['alert']}`", str(rule.get("for", "")), rule["labels"]["severity"], f"`{expression}`"]
