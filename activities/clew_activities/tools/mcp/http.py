"""The connection to an MCP server at a URL, by streamable HTTP, with bounded responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client

from clew_activities.tools.mcp.settings import HttpSettings
from clew_activities.tools.mcp.stdio import MAX_MESSAGE_BYTES, Streams

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 300.0
"""Seconds that a stream may be silent, unless a call of a tool may take longer."""


@asynccontextmanager
async def open_http_streams(settings: HttpSettings) -> AsyncIterator[Streams]:
    """Connect to a server. Requests follow no redirect to another host, so that headers stay with it."""
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=max(_READ_SECONDS, settings.timeout_seconds))
    async with (
        httpx2.AsyncClient(headers=settings.headers, timeout=timeout, transport=_BoundedTransport()) as client,
        streamable_http_client(settings.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Ends a JSON response that exceeds the size of a message. Events of a stream are bounded one by one."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "event-stream" not in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"the response has over {MAX_MESSAGE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
