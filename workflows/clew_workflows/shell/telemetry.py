"""What operators see of a session's turns: a log line, metrics and a span, without content. Nothing on a replay."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from temporalio import workflow

from clew.contract.payloads import RunPayload
from clew.thread.entries import Entry
from clew_workflows.core.state import State
from clew_workflows.shell import tracing

log = logging.getLogger("clew.turn")


def count_rollover() -> None:
    """Count a rollover."""
    workflow.metric_meter().create_counter("clew_rollovers", "Sessions that continued in a new workflow run.").add(1)


def report_turns(entries: Iterable[Entry], before: State) -> None:
    """Report the turns that the committed entries finish. `before` is the state in which they still ran."""
    for entry in entries:
        if entry.kind != "run":
            continue
        request_id = str(entry.refs.get("request_id"))
        traces = tracing.get_traces()
        if not workflow.unsafe.is_replaying():
            outcome, seconds = entry.read(RunPayload), measure_seconds(before, entry)
            _log_turn(entry, outcome, seconds)
            _count_turn(outcome, seconds)
            if seconds is not None:
                _trace_turn(request_id, outcome, seconds, before)
        traces.drop(request_id)


def measure_seconds(before: State, entry: Entry) -> float | None:
    """Measure how long a turn worked, without the time in which it waited for people; None: it never ran."""
    run = before.run
    if run is None or entry.refs.get("run_id") != run.run_id:
        return None
    now = workflow.time() if run.paused_at is None else run.paused_at + run.worked_seconds
    return max(now - (run.deadline - run.request.timeout_seconds), 0.0)


def _count_turn(outcome: RunPayload, seconds: float | None) -> None:
    meter = workflow.metric_meter()
    labels = {"status": outcome.status, "reason": outcome.termination_reason}
    meter.create_counter("clew_turns", "Requests that have ended.").add(1, labels)
    if seconds is not None:
        text = "Time of a request, without waits for people."
        meter.create_histogram_float("clew_turn_seconds", text).record(seconds, {"status": outcome.status})


def _trace_turn(request_id: str, outcome: RunPayload, seconds: float, before: State) -> None:
    end_turn, traces = tracing.TRACING.end_turn, tracing.get_traces()
    traceparent = traces.find(request_id)
    if end_turn is None or traceparent is None:
        return
    end_turn(
        tracing.FinishedTurn(
            session_id=workflow.info().workflow_id,
            request_id=request_id,
            agent=before.config.agent,
            status=outcome.status,
            reason=outcome.termination_reason,
            input_tokens=outcome.usage.input_tokens,
            output_tokens=outcome.usage.output_tokens,
            traceparent=traceparent,
            parent=traces.find_parent(request_id),
            end_ns=workflow.time_ns(),
            seconds=seconds,
        )
    )


def _log_turn(entry: Entry, outcome: RunPayload, seconds: float | None) -> None:
    usage = outcome.usage
    fields: dict[str, Any] = {
        "session": workflow.info().workflow_id,
        "request": entry.refs.get("request_id"),
        "run": entry.refs.get("run_id"),
        "status": outcome.status,
        "reason": outcome.termination_reason,
        "seconds": None if seconds is None else round(seconds, 3),
        "model_calls": usage.model_calls,
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": usage.cost_usd,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    log.info("turn %s", outcome.status, extra={"fields": known})
