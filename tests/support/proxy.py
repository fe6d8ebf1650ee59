"""A TCP proxy whose connections a test resets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


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
