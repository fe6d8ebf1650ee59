"""Spans of turns, model calls, summaries and tool calls, by the GenAI conventions. It needs the extra `telemetry`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew_workflows.contract.messages import ProviderCall
from clew_workflows.contract.outcomes import Usage
from clew_workflows.host.telemetry import FinishedTurn
from clew_workflows.protocol import CallModel, ModelAnswered, RunTool, Summarize, ToolAnswered, WrittenSummary

_PROPAGATOR = TraceContextTextMapPropagator()
_CHOSEN_IDS: ContextVar[tuple[int, int] | None] = ContextVar("_CHOSEN_IDS", default=None)


class TurnIds(RandomIdGenerator):
    """Makes random ids, and computes those of a turn: all workers get the same trace and span for it."""

    def generate_trace_id(self) -> int:
        """Make the id of a trace."""
        chosen = _CHOSEN_IDS.get()
        return chosen[0] if chosen else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Make the id of a span."""
        chosen = _CHOSEN_IDS.get()
        return chosen[1] if chosen else super().generate_span_id()


class Spans:
    """Makes the spans of one worker process."""

    def __init__(self, provider: TracerProvider, *, shows_content: bool = False) -> None:
        """Use a provider with the id generator `TurnIds`. With `shows_content`, spans have texts."""
        self._provider = provider
        self._tracer = provider.get_tracer("clew")
        self._shows_content = shows_content

    def close(self) -> None:
        """Send the spans that have not been sent."""
        self._provider.shutdown()

    @contextmanager
    def observe(self, request: Any, traceparent: str | None) -> Iterator[Attempt | None]:
        """Make the span of an attempt of a model call, a summary or a tool call; other activities have none."""
        # The summary of a session that has had no traced turn since its rollover has a trace of its own.
        if not isinstance(request, Summarize if traceparent is None else CallModel | RunTool | Summarize):
            yield None
            return
        info = activity.info()
        name, kind, attributes = _describe(request)
        attributes |= {"gen_ai.conversation.id": info.workflow_id or "", "clew.attempt": info.attempt}
        context = _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {})
        with self._tracer.start_as_current_span(
            name, context, kind, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            attempt = Attempt(span, request, shows_content=self._shows_content)
            try:
                yield attempt
            except BaseException as error:
                attempt.fail(error)
                raise

    def end_turn(self, turn: FinishedTurn) -> None:
        """Make the span of a turn that has ended. The spans of its calls are its children."""
        _, trace_id, span_id, _ = turn.traceparent.split("-")
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": turn.session_id,
            "gen_ai.agent.name": turn.agent,
            "gen_ai.usage.input_tokens": turn.input_tokens,
            "gen_ai.usage.output_tokens": turn.output_tokens,
            "clew.request.id": turn.request_id,
            "clew.status": turn.status,
            "clew.reason": turn.reason,
            "error.type": turn.reason if turn.status == "failed" else None,
        }
        token = _CHOSEN_IDS.set((int(trace_id, 16), int(span_id, 16)))
        try:
            span = self._tracer.start_span(
                f"invoke_agent {turn.agent}" if turn.agent else "invoke_agent",
                _PROPAGATOR.extract({"traceparent": turn.parent} if turn.parent else {}),
                attributes={name: value for name, value in attributes.items() if value is not None},
                start_time=turn.end_ns - int(turn.seconds * 1e9),
            )
        finally:
            _CHOSEN_IDS.reset(token)
        if turn.status == "failed":
            span.set_status(Status(StatusCode.ERROR))
        span.end(turn.end_ns)


class Attempt:
    """The span of one attempt."""

    def __init__(self, span: Span, request: CallModel | RunTool | Summarize, *, shows_content: bool) -> None:
        self._span = span
        self._request = request
        self._shows_content = shows_content

    def finish(self, answer: object) -> None:
        """Add what the attempt has answered."""
        if isinstance(answer, ModelAnswered):
            reply = answer.reply
            self._span.set_attribute("gen_ai.response.finish_reasons", [reply.stop_reason])
            self._span.set_attributes(_describe_usage(reply.usage))
            if reply.provider_calls:
                names = [call["tool"] for call in reply.provider_calls]
                self._span.set_attribute("clew.provider_tools.called", names)
            self._show_output(reply.text, reply.stop_reason, reply.provider_calls)
        if isinstance(answer, WrittenSummary):
            self._span.set_attributes(_describe_usage(answer.usage))
            self._show_output(answer.content, "stop")
        if isinstance(answer, ToolAnswered):
            if answer.is_error:
                self._span.set_status(Status(StatusCode.ERROR))
                self._span.set_attribute("error.type", "tool_error")
            if self._shows_content and isinstance(self._request, RunTool):
                self._span.set_attribute("gen_ai.tool.call.arguments", json.dumps(self._request.arguments))
                self._span.set_attribute("gen_ai.tool.call.result", answer.text)

    def _show_output(self, text: str, finish_reason: str, calls: Sequence[ProviderCall] = ()) -> None:
        """Add the text that a model has written, and the calls that its provider ran itself, if spans have texts."""
        if self._shows_content:
            parts: list[dict[str, Any]] = [part for call in calls for part in _make_server_parts(call)]
            parts.append({"type": "text", "content": text})
            message = {"role": "assistant", "parts": parts, "finish_reason": finish_reason}
            self._span.set_attribute("gen_ai.output.messages", json.dumps([message]))

    def fail(self, error: BaseException) -> None:
        """Add why the attempt failed: the type, without a message that may quote texts."""
        name = error.type if isinstance(error, ApplicationError) else type(error).__name__
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.set_attribute("error.type", name or "unknown")


def _make_server_parts(call: ProviderCall) -> Iterator[dict[str, Any]]:
    """Make the two parts of a message that the conventions have for a call that the provider ran itself."""
    name, result = call["tool"], {key: value for key, value in call.items() if key not in ("tool", "input")}
    made = {"type": name} | ({"input": call["input"]} if "input" in call else {})
    yield {"type": "server_tool_call", "name": name, "server_tool_call": made}
    yield {"type": "server_tool_call_response", "server_tool_call_response": {"type": name, **result}}


def make_spans(environ: Mapping[str, str]) -> Spans:
    """Make the spans of a worker process, which are sent by OTLP over HTTP as the `OTEL_…` variables say."""
    resource = Resource.create({SERVICE_NAME: environ.get("OTEL_SERVICE_NAME") or "clew-worker"})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()), id_generator=TurnIds())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    shows = environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").lower() == "true"
    return Spans(provider, shows_content=shows)


def _describe(request: CallModel | RunTool | Summarize) -> tuple[str, SpanKind, dict[str, Any]]:
    attributes: dict[str, Any]
    if isinstance(request, Summarize):
        attributes = {"gen_ai.request.max_tokens": request.max_output_tokens, "clew.summary.id": request.summary_id}
        return _describe_chat(request.model, attributes)
    attributes = {"clew.request.id": request.request_id, "clew.run.id": request.run_id}
    attributes["clew.call.id"] = request.call_id
    if isinstance(request, CallModel):
        options = {
            "gen_ai.request.max_tokens": request.options.max_output_tokens,
            "gen_ai.request.temperature": request.options.temperature,
            "gen_ai.request.top_p": request.options.top_p,
        }
        attributes |= {name: value for name, value in options.items() if value is not None}
        return _describe_chat(request.model, attributes)
    attributes |= {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": request.name,
        "gen_ai.tool.call.id": request.tool_call_id,
        "gen_ai.tool.type": "function",
    }
    return f"execute_tool {request.name}", SpanKind.INTERNAL, attributes


def _describe_chat(name: str, attributes: dict[str, Any]) -> tuple[str, SpanKind, dict[str, Any]]:
    provider, _, model = name.partition(":")
    attributes |= {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
    attributes |= {"gen_ai.request.model": model, "gen_ai.request.stream": True}
    return f"chat {model}", SpanKind.CLIENT, attributes


def _describe_usage(usage: Usage) -> dict[str, Any]:
    attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.written_input_tokens or None,
        "clew.cost_usd": usage.cost_usd,
    }
    return {name: value for name, value in attributes.items() if value is not None}
