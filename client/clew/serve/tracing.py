"""Traces of the service, with the extra `telemetry`: a span for each request, above those of the worker."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.client import Interceptor
from temporalio.contrib.opentelemetry import OpenTelemetryInterceptor

from clew.serve.gate import is_probe

_PROPAGATOR = TraceContextTextMapPropagator()
_FAILED = 500


def start(environ: Mapping[str, str]) -> list[Interceptor]:
    """Send spans of this process by OTLP over HTTP, as the `OTEL_…` variables say.

    Returns the interceptors of a connection that passes the trace on to workers.
    """
    resource = Resource.create({SERVICE_NAME: environ.get("OTEL_SERVICE_NAME") or "clew-serve"})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return [OpenTelemetryInterceptor()]


class Spans:
    """Makes the span of each request. Its name is the route, which has no ids, and it has no texts."""

    def __init__(self, inner: ASGIApp, provider: trace.TracerProvider | None = None) -> None:
        self._inner = inner
        self._tracer = trace.get_tracer("clew.serve", tracer_provider=provider)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request within its span, which continues the trace of its caller."""
        if scope["type"] != "http" or is_probe(scope["path"]):
            await self._inner(scope, receive, send)
            return
        method: str = scope["method"]
        caller = _PROPAGATOR.extract(Headers(scope=scope))
        with self._tracer.start_as_current_span(
            method, context=caller, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:

            async def note_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= _FAILED:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            span.set_attribute("http.request.method", method)
            try:
                await self._inner(scope, receive, note_status)
            finally:
                if route := getattr(scope.get("route"), "path", None):
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
