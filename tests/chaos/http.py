"""A small HTTP proxy on loopback whose handler decides what happens to each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from clew.local.child import LOOPBACK

_HEAD_LIMIT = 64 * 1024
_CHUNK = 16 * 1024


@dataclass(frozen=True)
class HttpRequest:
    """A request as it was received.

    Attributes:
        method: Its method.
        target: Its path and query.
        headers: Its headers, names in lower case.
        body: Its body.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The path without the query."""
        return self.target.partition("?")[0]


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer.

    Attributes:
        status: The status.
        headers: Headers beside those of the length and the connection.
        body: The body.
        length: The length that the answer claims; None: that of the body.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None

    def encode(self) -> bytes:
        """Encode the answer for a connection that ends with it."""
        length = len(self.body) if self.length is None else self.length
        fields = {**self.headers, "content-length": str(length), "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"HTTP/1.1 {self.status} X\r\n{lines}\r\n".encode("latin-1") + self.body


class Aborted(Exception):
    """The handler drops the connection without an answer."""


@dataclass(frozen=True)
class Connection:
    """The connection of one request.

    Attributes:
        reader: Reads from the client; its end is the client's end.
        writer: Writes to the client.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self, answer: HttpAnswer | bytes) -> None:
        """Send an answer, or bytes that need not be one."""
        self.writer.write(answer if isinstance(answer, bytes) else answer.encode())
        await self.writer.drain()

    async def wait_for_hangup(self) -> None:
        """Wait until the client closes the connection."""
        while await self.reader.read(_CHUNK):
            pass


Handler = Callable[[HttpRequest, Connection], Awaitable[None]]
"""Answers one request on its connection."""


async def read_request(reader: asyncio.StreamReader) -> HttpRequest:
    """Read one request with its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpRequest(method, target, headers, body)


async def forward(request: HttpRequest, address: str) -> AsyncGenerator[bytes]:
    """Send a request to the server at `host:port`, and yield its answer as it arrives."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=_HEAD_LIMIT)
    try:
        fields = {**request.headers, "connection": "close", "content-length": str(len(request.body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{request.method} {request.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + request.body)
        await writer.drain()
        while chunk := await reader.read(_CHUNK):
            yield chunk
    finally:
        writer.close()


@asynccontextmanager
async def run_http_server(handler: Handler) -> AsyncIterator[str]:
    """Serve on a free port of loopback, one request for each connection; yields `host:port`."""
    connections: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await handler(await read_request(reader), Connection(reader, writer))
        except Aborted:
            writer.transport.abort()
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(converse(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, LOOPBACK, 0, limit=_HEAD_LIMIT)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
