"""A proxy on loopback that splits the network: it resets and refuses connections, or passes nothing on."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Literal, get_args

from clew.local.child import LOOPBACK

Direction = Literal["requests", "answers"]
"""What clients send, and what the server sends."""
_HELD: Mapping[str, tuple[Direction, ...]] = {
    "hold": ("requests", "answers"),
    "hold requests": ("requests",),
    "hold answers": ("answers",),
}
SPLITS = ("refuse", *_HELD)
"""Ways to split the network: connections are reset and refused, or stay open, and nothing passes."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""For `SO_LINGER`: a socket that is closed resets its connection."""


class Proxy:
    """Passes connections on to a server.

    Attributes:
        address: Host and port.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self._host, _, self._port = target.partition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = {direction: asyncio.Event() for direction in get_args(Direction)}
        self._listener: asyncio.Server | None = None

    def split(self, how: str) -> None:
        """Cut the clients off from the server, in one of the ways of `SPLITS`."""
        if how in _HELD:
            for direction in _HELD[how]:
                self._passing[direction].clear()
            return
        if self._listener:
            self._listener.close()
            self._listener = None
        self.reset_connections()

    async def restore(self) -> None:
        """Accept connections, and pass all on. What was held arrives late."""
        for passing in self._passing.values():
            passing.set()
        if self._listener is None:
            port = int(self.address.rpartition(":")[2] or 0)
            self._listener = await asyncio.start_server(self._pass_on, LOOPBACK, port)
            self.address = f"{LOOPBACK}:{self._listener.sockets[0].getsockname()[1]}"

    def reset_connections(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            _reset(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = {writer}
        self._writers.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, int(self._port))
            both.add(there_writer)
            self._writers.add(there_writer)
            await asyncio.gather(
                _copy(reader, there_writer, self._passing["requests"]),
                _copy(there_reader, writer, self._passing["answers"]),
            )
        except OSError:
            _reset(writer)
        finally:
            self._writers -= both
            for one in both:
                one.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            await passing.wait()
            writer.write(data)
            await writer.drain()
    await passing.wait()
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # it is closed
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()


@asynccontextmanager
async def run_proxy(target: str) -> AsyncIterator[Proxy]:
    """Run a proxy for the server at `host:port`."""
    proxy = Proxy(target)
    await proxy.restore()
    try:
        yield proxy
    finally:
        await proxy.restore()
        proxy.split("refuse")
