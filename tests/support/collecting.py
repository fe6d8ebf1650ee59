"""A collector of OpenTelemetry: it keeps the spans that workers send by OTLP over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from clew.local.child import LOOPBACK, free_ports


@dataclass(frozen=True)
class Received:
    """A span.

    Attributes:
        name: Its name.
        trace: The id of its trace.
        id: Its own id.
        parent: The id of its parent.
        service: The process that sent it.
        attributes: Its attributes.
        failed: It has the status of an error.
    """

    name: str
    trace: str
    id: str
    parent: str
    service: str
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """The spans that have arrived.

    Attributes:
        endpoint: The value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
        spans: The spans.
    """

    endpoint: str
    spans: list[Received] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take requests of one connection."""
        try:
            while True:
                header = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(header.partition("content-length:")[2].split("\r\n", 1)[0])
                self._take(await reader.readexactly(size))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def _take(self, data: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            described = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes
                    }
                    self.spans.append(
                        Received(
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            service=described["service.name"],
                            attributes=attributes,
                            failed=span.status.code == span.status.STATUS_CODE_ERROR,
                        )
                    )


@asynccontextmanager
async def run_collector() -> AsyncIterator[Collector]:
    """Run a collector while the context is open."""
    port = free_ports(1)[0]
    collector = Collector(f"http://{LOOPBACK}:{port}")
    async with await asyncio.start_server(collector.handle, LOOPBACK, port):
        yield collector
