"""What operators see of a session's turns: a log line, metrics and a span, without content. Nothing on a replay."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.worker import (
    ContinueAsNewInput,
    HandleUpdateInput,
    StartActivityInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from clew_workflows.contract.names import WORKFLOW_TYPE
from clew_workflows.contract.payloads import RunPayload
from clew_workflows.protocol import Summarize
from clew_workflows.session.state import State
from clew_workflows.thread.entries import Entry

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
        traces = get_traces()
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
    now = workflow.time() if run.clock.paused_at is None else run.clock.paused_at + run.clock.worked_seconds
    return max(now - (run.clock.deadline - run.request.timeout_seconds), 0.0)


def _count_turn(outcome: RunPayload, seconds: float | None) -> None:
    meter = workflow.metric_meter()
    labels = {"status": outcome.status, "reason": outcome.termination_reason}
    meter.create_counter("clew_turns", "Requests that have ended.").add(1, labels)
    if seconds is not None:
        text = "Time of a request, without waits for people."
        meter.create_histogram_float("clew_turn_seconds", text).record(seconds, {"status": outcome.status})


def _trace_turn(request_id: str, outcome: RunPayload, seconds: float, before: State) -> None:
    end_turn, traces = TRACING.end_turn, get_traces()
    traceparent = traces.find(request_id)
    if end_turn is None or traceparent is None:
        return
    end_turn(
        FinishedTurn(
            session_id=workflow.info().workflow_id,
            request_id=request_id,
            agent=before.settings.config.agent,
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


# Traces of requests: each activity of a request gets the context of its turn in the header of OpenTelemetry.
#
# The id of a turn's span is a digest: workers that never met agree on it, and a replay takes no random numbers. The
# span is made when the turn has ended, by the worker that has committed its outcome.


HEADER = "_tracer-data"
"""The header of `temporalio.contrib.opentelemetry`."""
CARRIED_HEADER = "_clew-traces"
"""The header of a new workflow run: the traces of the requests that have not ended."""
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, kw_only=True)
class FinishedTurn:
    """A turn that has ended, for its span.

    Attributes:
        session_id: The session.
        request_id: The request.
        agent: The session's agent; None: it has none.
        status: How it ended.
        reason: Its termination reason.
        input_tokens: The input tokens of its model calls.
        output_tokens: Their output tokens.
        traceparent: The context of the turn's span.
        parent: The context of the span that the turn belongs to, as the caller sent it; None: the turn is a root.
        end_ns: When it ended, in nanoseconds since the epoch.
        seconds: How long it took.
    """

    session_id: str
    request_id: str
    agent: str | None
    status: str
    reason: str
    input_tokens: int
    output_tokens: int
    traceparent: str
    parent: str | None
    end_ns: int
    seconds: float


@dataclass
class Tracing:
    """Whether this process makes spans.

    Attributes:
        end_turn: Makes the span of a turn that has ended; None: this process makes no spans.
    """

    end_turn: Callable[[FinishedTurn], None] | None = None


TRACING = Tracing()
"""The tracing of this process."""


class Traces:
    """The traces of a session's requests that have not ended."""

    def __init__(self) -> None:
        info = workflow.info()
        carried = _read_json(info.headers.get(CARRIED_HEADER))
        self._parents = {name: text for name, text in carried.items() if _is_traceparent(text)}
        # The trace of a subagent's task. Other sessions live longer than the request that has opened them.
        self._task = read_traceparent(info.headers) if info.parent else None
        self.latest: str | None = None
        # The context that the caller of a summary has sent, and that of the turn which has ended last.
        self._summary: str | None = None
        self._ended: str | None = None

    def note(self, request_id: str, traceparent: str) -> None:
        """Note the context that a caller has sent with a request."""
        self._parents.setdefault(request_id, traceparent)

    def find_parent(self, request_id: str) -> str | None:
        """Find the context that a request belongs to; None: the caller sent none."""
        return self._parents.get(request_id, self._task)

    def find(self, request_id: str) -> str | None:
        """Find the context that the calls of a request belong to; None: they are not traced."""
        parent = self.find_parent(request_id)
        if TRACING.end_turn is None:
            return parent
        digest = hashlib.sha256(f"{workflow.info().workflow_id}/{request_id}".encode()).hexdigest()
        _, trace_id, _, flags = parent.split("-") if parent else ("", digest[16:48], "", "01")
        return f"00-{trace_id}-{digest[:16]}-{flags}"

    def drop(self, request_id: str) -> None:
        """Forget a request that has ended. An automatic summary after it belongs to its turn."""
        self._ended = self.find(request_id)
        self._parents.pop(request_id, None)

    def note_summary(self, traceparent: str | None) -> None:
        """Note the context that a caller has sent with a request for a summary."""
        self._summary = traceparent

    def take_summary(self) -> str | None:
        """Take the context that a summary belongs to; None: it is not known."""
        noted, self._summary = self._summary, None
        return noted or self._ended

    def make_headers(self) -> dict[str, Payload]:
        """Make the headers of the next workflow run."""
        headers = {CARRIED_HEADER: _make_payload(self._parents)} if self._parents else {}
        return headers | ({HEADER: make_header(self._task)} if self._task else {})


_TRACES: WeakKeyDictionary[object, Traces] = WeakKeyDictionary()


def get_traces() -> Traces:
    """Get the traces of the current session."""
    session = workflow.instance()
    if session not in _TRACES:
        _TRACES[session] = Traces()
    return _TRACES[session]


class TracingInterceptor(WorkflowInboundInterceptor):
    """Notes the context of each message, and passes it on to the activities and the subagents of its turn.

    A summary has the context of the caller that asked for it, or else of the turn after which it is written.
    """

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Put the outbound part before the SDK's."""
        super().init(_Outbound(outbound))

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002 - the SDK's name
        """Note the context of a message."""
        if _is_session() and input.update == "message" and (traceparent := read_traceparent(input.headers)):
            get_traces().note(_find_request_id(input), traceparent)
        if _is_session() and input.update == "summarize":
            get_traces().note_summary(read_traceparent(input.headers))
        return await super().handle_update_handler(input)


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        if not _is_session():
            return super().start_activity(input)
        traces = get_traces()
        effect = input.args[0] if input.args else None
        if isinstance(effect, Summarize) and (summarized := traces.take_summary()):
            input.headers = {**input.headers, HEADER: make_header(summarized)}
        request_id = getattr(effect, "request_id", None)
        if isinstance(request_id, str):
            traces.latest = request_id
            if traceparent := traces.find(request_id):
                input.headers = {**input.headers, HEADER: make_header(traceparent)}
        return super().start_activity(input)

    async def start_child_workflow(
        self,
        input: StartChildWorkflowInput,  # noqa: A002
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        if not _is_session():
            return await super().start_child_workflow(input)
        traces = get_traces()
        # A subagent is started by the run whose model was called last.
        if traces.latest is not None and (traceparent := traces.find(traces.latest)):
            input.headers = {**input.headers, HEADER: make_header(traceparent)}
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> Any:  # noqa: A002
        if _is_session():
            input.headers = {**input.headers, **get_traces().make_headers()}
        super().continue_as_new(input)


def _is_session() -> bool:
    """Whether the current workflow is a session: a team's own workflows on the same worker are left alone."""
    return workflow.info().workflow_type == WORKFLOW_TYPE


def make_header(traceparent: str) -> Payload:
    """Make the header of a context."""
    return _make_payload({"traceparent": traceparent})


def read_traceparent(headers: Mapping[str, Payload]) -> str | None:
    """Read the context in the header of OpenTelemetry; None: there is none."""
    text = _read_json(headers.get(HEADER)).get("traceparent")
    return text if _is_traceparent(text) else None


def _find_request_id(message: HandleUpdateInput) -> str:
    """Find the request's id: the caller's own, or that of the update."""
    for arg in message.args:
        for raw in arg if isinstance(arg, list | tuple) else (arg,):
            if isinstance(raw, RawValue):
                request_id = _read_json(raw.payload).get("request_id")
                return request_id if isinstance(request_id, str) else message.id
    return message.id


def _is_traceparent(text: object) -> bool:
    return isinstance(text, str) and _TRACEPARENT.fullmatch(text) is not None


def _make_payload(value: Mapping[str, str]) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


def _read_json(payload: Payload | None) -> dict[str, Any]:
    """Read a JSON object. Anything else counts as an empty one: any caller may send a header."""
    if payload is None:
        return {}
    try:
        value = json.loads(payload.data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
