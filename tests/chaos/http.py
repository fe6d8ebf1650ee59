"""HTTP on loopback: a server, requests that are passed on, and a proxy that fails some of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

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


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest:
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
async def run_server(handler: Handler) -> AsyncIterator[str]:
    """Serve on a free port of loopback, one request for each connection; yields `host:port`."""
    connections: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await handler(await _read_request(reader), Connection(reader, writer))
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


class FaultyProxy:
    """Passes requests on to a server, or fails them while a fault is in force.

    Attributes:
        address: Host and port, while it serves.
        requests: The requests so far.
        faults: The faults so far, by kind.
        over: Set when the faults are over for good: what hangs is to end.
    """

    def __init__(self, address: str, seed: int) -> None:
        self.address = ""
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.over = asyncio.Event()
        self._address = address
        self._chance = random.Random(f"{type(self).__name__}-{seed}")
        self._fault: str | None = None
        self._share = self._until = 0.0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Self]:
        """Serve on a free port of loopback."""
        async with run_server(self.handle) as self.address:
            yield self

    def begin_fault(self, fault: str, share: float, seconds: float) -> None:
        """Fail a share of the requests for some seconds. The fault takes the place of the one in force."""
        self._fault, self._share, self._until = fault, share, time.monotonic() + seconds

    def end_faults(self) -> None:
        """End the faults for good."""
        self._fault = None
        self.over.set()

    async def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer one request."""
        self.requests += 1
        is_failing = self._fault and time.monotonic() <= self._until and self._chance.random() <= self._share
        await self._answer(request, connection, self._fault if is_failing else None)

    async def _answer(self, request: HttpRequest, connection: Connection, fault: str | None) -> None:
        raise NotImplementedError
