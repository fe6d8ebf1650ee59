"""A small HTTP server with bounds: for the codec server, on asyncio and h11."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import h11

from clew_audit.codec_server import MAX_BODY_BYTES, Request, Response

MAX_CONNECTIONS = 64
"""Connections that are served at the same time. Others are closed at once."""
REQUEST_SECONDS = 20.0
"""Seconds within which a request must have come and been answered, and an idle connection must send the next one."""
MAX_HEADER_BYTES = 16_384
_READ_BYTES = 65_536

Answer = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def serve_http(answer: Answer, host: str, port: int) -> AsyncIterator[int]:
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
                await _serve_connection(answer, reader, writer)
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


async def _serve_connection(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    with suppress(TimeoutError, ConnectionError):
        while True:
            async with asyncio.timeout(REQUEST_SECONDS):
                try:
                    request = await _read_request(connection, reader, writer)
                    if request is None:
                        return
                    response = await answer(request)
                except h11.RemoteProtocolError as error:
                    response = Response(error.error_status_hint)
                if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                    return
                await _send(connection, writer, response)
            try:
                connection.start_next_cycle()
            except h11.LocalProtocolError:
                return


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """Read a request; None: the client has closed the connection.

    Raises:
        h11.RemoteProtocolError: It is not HTTP, or too large.
    """
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            path = head.target.decode("latin-1").partition("?")[0]
            return Request(head.method.decode("latin-1"), path, headers, bytes(body))
        else:
            return None


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
