"""An application on a loopback port, a proxy that resets its connections, and its server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from httpx_sse import aconnect_sse

from clew import Clew
from clew.local.child import LOOPBACK
from tests.support.waiting import PATIENCE_SECONDS


class _Server(uvicorn.Server):
    """A server that leaves the signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve(app: FastAPI, clew: Clew | None = None) -> AsyncIterator[str]:
    """Serve an application that finds its client in `app.state.clew`. Yields host and port."""
    app.state.clew = clew
    config = uvicorn.Config(
        app, host=LOOPBACK, port=0, lifespan="off", log_level="warning", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)
    try:
        yield f"{LOOPBACK}:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@dataclass(frozen=True)
class SentEvent:
    """A server-sent event.

    Attributes:
        id: The id of the newest event that has one, as a browser keeps it.
        data: The data.
    """

    id: str
    data: dict[str, Any]


async def receive(
    http: httpx.AsyncClient, path: str, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[SentEvent, None]:
    """Receive the events of a path."""
    async with aconnect_sse(http, "GET", path, headers=dict(headers or {}), timeout=PATIENCE_SECONDS) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            yield SentEvent(event.id, json.loads(event.data))


class Proxy:
    """Passes connections on to a server.

    Attributes:
        address: Host and port.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self._host, _, self._port = target.partition(":")
        self._writers: set[asyncio.StreamWriter] = set()

    def reset_connections(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        there_reader, there_writer = await asyncio.open_connection(self._host, int(self._port))
        both = {writer, there_writer}
        self._writers |= both
        try:
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        finally:
            self._writers -= both
            for one in both:
                one.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def run_proxy(target: str) -> AsyncIterator[Proxy]:
    """Run a proxy for the server at `host:port`."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.pass_on, "127.0.0.1", 0)
    try:
        proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy
    finally:
        server.close()
        proxy.reset_connections()
        await server.wait_closed()
