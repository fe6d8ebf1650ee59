"""A small HTTP server with bounds, on asyncio and h11: for the health port of workers and for the codec server."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import h11

MAX_CONNECTIONS = 64
"""Connections that are served at the same time. A new one takes the place of one that waits for its client."""
REQUEST_SECONDS = 20.0
"""Seconds within which a request must have come and been answered, and an idle connection must send the next one."""
LINGER_SECONDS = 2.0
"""Seconds for which the rest of a request that was answered early is discarded."""
MAX_HEADER_BYTES = 16_384
_READ_BYTES = 65_536

log = logging.getLogger("clew.http")


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        method: The method, in upper case.
        path: The path, without the query.
        headers: The headers, by their names in lower case.
        body: The body.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """A response.

    Attributes:
        status: The status code.
        headers: The headers, beside those of the connection.
        body: The body. The answer to a `HEAD` leaves it out.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Service(Protocol):
    """Answers requests. It knows nothing of connections."""

    def admit(self, request: Request) -> Response | int:
        """Decide by the head of a request: the answer, or the most bytes that its body may have."""
        ...

    async def answer(self, request: Request) -> Response:
        """Answer a request that has its body."""
        ...


@asynccontextmanager
async def serve_http(service: Service, host: str, port: int) -> AsyncIterator[int]:
    """Serve requests until the context ends. Yields the port.

    Raises:
        OSError: The address cannot be used.
    """
    # In the order in which they have come.
    connections: dict[asyncio.Task[None], _Connection] = {}

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = connection = _Connection(service, reader, writer)
        try:
            # The end of the context cancels it, or a later connection. Python 3.11 would report that as an error.
            with suppress(asyncio.CancelledError):
                if len(connections) > MAX_CONNECTIONS:
                    _make_room(connections)
                await connection.serve()
        finally:
            connections.pop(task, None)
            writer.close()

    server = await asyncio.start_server(connect, host, port, limit=_READ_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


def _make_room(connections: dict[asyncio.Task[None], _Connection]) -> None:
    """Close the oldest connection that waits for its client, of the address that has the most of them.

    If all requests are being answered, the newest connection is the one that waits.
    """
    waiting = {task: connection.address for task, connection in connections.items() if connection.waits}
    counts = Counter(waiting.values())
    task = max(waiting, key=lambda task: counts[waiting[task]])
    del connections[task]
    task.cancel()


class _Connection:
    """A connection.

    Attributes:
        waits: It waits for its client: the request has not come completely.
    """

    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.waits = True
        self._service = service
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)

    @property
    def address(self) -> str:
        """The address of the client."""
        peer = self._writer.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    async def serve(self) -> None:
        """Answer the requests of the connection, one after another."""
        with suppress(TimeoutError, ConnectionError):
            while await self._serve_request():
                try:
                    self._http.start_next_cycle()
                except h11.LocalProtocolError:
                    await self._linger()
                    return

    async def _serve_request(self) -> bool:
        """Answer one request; returns whether it was answered."""
        is_head = False
        async with asyncio.timeout(REQUEST_SECONDS):
            try:
                head = await self._read_event()
                if not isinstance(head, h11.Request):
                    return False
                is_head = head.method == b"HEAD"
                response = await self._answer(head)
            except h11.RemoteProtocolError as error:
                response = Response(error.error_status_hint)
            # uvloop refuses to write to a connection that the client has closed.
            if response is None or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self._is_closed:
                return False
            await self._send(response, is_head=is_head)
        return True

    @property
    def _is_closed(self) -> bool:
        return self._writer.is_closing()

    async def _answer(self, head: h11.Request) -> Response | None:
        """Answer a request, after its body was read if it is needed; None: the client has closed the connection.

        Raises:
            h11.RemoteProtocolError: It is not HTTP, or too large.
        """
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path = head.target.decode("latin-1").partition("?")[0]
        request = Request(head.method.decode("latin-1"), path, headers)
        try:
            admitted = self._service.admit(request)
            if isinstance(admitted, Response):
                # The end of a request without a body is there already, and the connection can go on.
                self._http.next_event()
                return admitted
            body = await self._read_body(admitted, headers.get("content-length", "0"))
            if body is None:
                return None
            self.waits = False
            try:
                return await self._service.answer(replace(request, body=body))
            finally:
                self.waits = True
        except (h11.RemoteProtocolError, TimeoutError, ConnectionError):
            raise
        except Exception as error:
            # The message may hold a text.
            log.error("a request failed: %s", type(error).__name__)
            return Response(500)

    async def _read_body(self, max_bytes: int, announced: str) -> bytes | None:
        """Read the body of a request; None: the client has closed the connection.

        Raises:
            h11.RemoteProtocolError: It is larger than `max_bytes`, or not HTTP.
        """
        body = bytearray()
        # h11 has checked that the header is a number of at most 20 digits.
        size = int(announced)
        while size <= max_bytes:
            event = await self._read_event()
            if isinstance(event, h11.EndOfMessage):
                return bytes(body)
            if not isinstance(event, h11.Data):
                return None
            body += event.data
            size = max(size, len(body))
        raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)

    async def _read_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(_READ_BYTES))
        return event

    async def _send(self, response: Response, *, is_head: bool) -> None:
        headers = [
            *response.headers.items(),
            ("Content-Length", str(len(response.body))),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if self._http.their_state is not h11.DONE:
            # The rest of the request is not read.
            headers.append(("Connection", "close"))
        self._write(h11.Response(status_code=response.status, headers=headers))
        if not is_head:
            self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _linger(self) -> None:
        """Discard what is still sent, within bounds: a close in its middle would take the answer from the client."""
        if self._is_closed or not self._writer.can_write_eof():
            return
        self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._reader.read(_READ_BYTES):
                    pass
