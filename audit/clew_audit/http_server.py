"""A small HTTP server with bounds: for the codec server, on asyncio and h11."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol

import h11

from clew_audit.codec_server import Request, Response

MAX_CONNECTIONS = 64
"""Connections that are served at the same time. Others are closed at once."""
REQUEST_SECONDS = 20.0
"""Seconds within which a request must have come and been answered, and an idle connection must send the next one."""
LINGER_SECONDS = 2.0
"""Seconds for which the rest of a request that was answered early is discarded."""
MAX_HEADER_BYTES = 16_384
_READ_BYTES = 65_536

log = logging.getLogger("clew.codec-server")


class Service(Protocol):
    """Answers requests."""

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
    connections: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            if len(connections) <= MAX_CONNECTIONS:
                await _serve_connection(service, reader, writer)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connect, host, port, limit=_READ_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _serve_connection(service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    with suppress(TimeoutError, ConnectionError):
        while True:
            async with asyncio.timeout(REQUEST_SECONDS):
                try:
                    response = await _answer(service, connection, reader, writer)
                except h11.RemoteProtocolError as error:
                    response = Response(error.error_status_hint)
                if response is None:
                    return
                if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                    return
                await _send(connection, writer, response)
            try:
                connection.start_next_cycle()
            except h11.LocalProtocolError:
                await _linger(reader, writer)
                return


async def _answer(
    service: Service, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Response | None:
    """Read a request, its body only if it is needed, and answer it; None: the client has closed the connection.

    Raises:
        h11.RemoteProtocolError: It is not HTTP, or too large.
    """
    head = await _read_event(connection, reader, writer)
    if not isinstance(head, h11.Request):
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    path = head.target.decode("latin-1").partition("?")[0]
    request = Request(head.method.decode("latin-1"), path, headers)
    try:
        admitted = service.admit(request)
        if isinstance(admitted, Response):
            # The end of a request without a body is there already, and the connection can go on.
            connection.next_event()
            return admitted
        body = await _read_body(connection, reader, writer, admitted, headers.get("content-length", "0"))
        return None if body is None else await service.answer(replace(request, body=body))
    except (h11.RemoteProtocolError, TimeoutError, ConnectionError):
        raise
    except Exception as error:
        # The message may hold a text.
        log.error("a request failed: %s", type(error).__name__)
        return Response(500)


async def _read_body(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    max_bytes: int,
    announced: str,
) -> bytes | None:
    """Read the body of a request; None: the client has closed the connection.

    Raises:
        h11.RemoteProtocolError: It is larger than `max_bytes`, or not HTTP.
    """
    body = bytearray()
    # h11 has checked that the header is a number of at most 20 digits.
    size = int(announced)
    while size <= max_bytes:
        event = await _read_event(connection, reader, writer)
        if isinstance(event, h11.EndOfMessage):
            return bytes(body)
        if not isinstance(event, h11.Data):
            return None
        body += event.data
        size = max(size, len(body))
    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)


async def _read_event(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    while (event := connection.next_event()) is h11.NEED_DATA:
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        connection.receive_data(await reader.read(_READ_BYTES))
    return event


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Discard what is still sent, within bounds: a close in its middle would take the answer from the client."""
    if not writer.can_write_eof():
        return
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(_READ_BYTES):
                pass


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, response: Response) -> None:
    headers = [
        *response.headers.items(),
        ("Content-Length", str(len(response.body))),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if connection.their_state is not h11.DONE:
        # The rest of the request is not read.
        headers.append(("Connection", "close"))
    events = (h11.Response(status_code=response.status, headers=headers), h11.Data(data=response.body))
    for event in (*events, h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
