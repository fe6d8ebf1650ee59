"""The metrics of activities, on the meter of the SDK's runtime. No label has an unbounded number of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import activity
from temporalio.common import MetricMeter

from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import (
    CallModel,
    ModelAnswered,
    RunTool,
    Summarize,
    ToolAnswered,
    WrittenSummary,
)

_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SLOW = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "clew_turn_seconds": _SLOW,
    "clew_model_call_seconds": _SLOW,
    "clew_model_first_token_seconds": _SLOW,
    "clew_model_cost_usd": (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0),
    "clew_tool_call_seconds": (*_FAST, 60.0, 300.0),
    "clew_archive_seconds": _FAST,
}
"""The upper bounds of the histograms' buckets, for `temporalio.runtime.PrometheusConfig`."""

MAX_LABEL_VALUES = 200
"""Values of one label in one process. Callers choose models and tools: later values are reported as `other`."""
ARCHIVING = frozenset({"archive", "thaw", "recall", "read_thread", "read_context", "fork_session", "delete_session"})
"""The activities that read and write the archive."""


class BoundedLabels:
    """Limits how many values each label has."""

    def __init__(self, limit: int = MAX_LABEL_VALUES) -> None:
        self._limit = limit
        self._values: dict[str, set[str]] = {}

    def limit(self, **labels: str) -> dict[str, str]:
        """Replace values by `other`, once their label has as many as it may have."""
        return {name: self._limit_value(name, value) for name, value in labels.items()}

    def _limit_value(self, name: str, value: str) -> str:
        values = self._values.setdefault(name, set())
        if value in values:
            return value
        if len(values) >= self._limit:
            return "other"
        values.add(value)
        return value


_LABELS = BoundedLabels()


def record_answer(request: Any, answer: Any, seconds: float) -> None:
    """Record an attempt of an activity that has answered."""
    name, meter = activity.info().activity_type, activity.metric_meter()
    if isinstance(request, CallModel) and isinstance(answer, ModelAnswered):
        _record_usage(meter, request.model, answer.reply.usage)
        _observe(meter, "clew_model_call_seconds", "Time of a model call.", seconds, _name_model(request.model))
    elif isinstance(request, Summarize) and isinstance(answer, WrittenSummary):
        _record_usage(meter, request.model, answer.usage)
    elif isinstance(request, RunTool) and isinstance(answer, ToolAnswered):
        _observe_tool(meter, request, "error" if answer.is_error else "ok", seconds)
    elif name in ARCHIVING:
        _observe_archive(meter, "ok", seconds)


def record_failure(
    request: Any, failure_type: str, details: tuple[Any, ...], seconds: float, *, repeated: bool
) -> None:
    """Record an attempt of an activity that has failed."""
    name, meter = activity.info().activity_type, activity.metric_meter()
    if repeated:
        labels = _LABELS.limit(type=failure_type)
        meter.create_counter("clew_retries", "Attempts that failed and were repeated.").add(1, labels)
    if isinstance(request, CallModel | Summarize):
        labels = _name_model(request.model) | _LABELS.limit(type=failure_type)
        meter.create_counter("clew_model_errors", "Attempts of model calls that failed.").add(1, labels)
        for answer in details:
            if isinstance(answer, ModelAnswered):
                _record_usage(meter, request.model, answer.reply.usage)
    elif isinstance(request, RunTool):
        _observe_tool(meter, request, "failed", seconds)
    elif name in ARCHIVING:
        _observe_archive(meter, "failed", seconds)


def record_first_token(model: str, seconds: float) -> None:
    """Record the time from the request to a provider until the reply began."""
    text = "Time from the request until the reply began."
    _observe(activity.metric_meter(), "clew_model_first_token_seconds", text, seconds, _name_model(model))


def _record_usage(meter: MetricMeter, model: str, usage: Usage) -> None:
    labels = _name_model(model)
    tokens = meter.create_counter("clew_model_tokens", "Tokens of model calls, as the providers reported them.")
    kinds = {
        "input": usage.input_tokens,
        "cached_input": usage.cached_input_tokens,
        "written_input": usage.written_input_tokens or 0,
        "output": usage.output_tokens,
    }
    for kind, number in kinds.items():
        if number > 0:
            tokens.add(number, {**labels, "kind": kind})
    if usage.cost_usd is not None:
        _observe(meter, "clew_model_cost_usd", "Cost of a model call, in USD.", usage.cost_usd, labels)


def _observe_tool(meter: MetricMeter, call: RunTool, outcome: str, seconds: float) -> None:
    labels = _LABELS.limit(tool=call.name) | {"outcome": outcome}
    _observe(meter, "clew_tool_call_seconds", "Time of an attempt of a tool call.", seconds, labels)


def _observe_archive(meter: MetricMeter, outcome: str, seconds: float) -> None:
    text = "Time of an attempt to read or write the archive."
    _observe(meter, "clew_archive_seconds", text, seconds, {"outcome": outcome})


def _observe(meter: MetricMeter, name: str, text: str, value: float, labels: Mapping[str, str]) -> None:
    meter.create_histogram_float(name, text).record(value, labels)


def _name_model(name: str) -> dict[str, str]:
    provider, _, model = name.partition(":")
    return _LABELS.limit(provider=provider, model=model)
