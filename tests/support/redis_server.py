"""Redis, Debian's, for tests of the live channel: a server that a test kills, pauses and empties, and a cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from clew.local.child import LOOPBACK, Child, accepts_connections, child_process, free_ports
from tests.support.tls import make_certificates
from tests.support.waiting import PATIENCE_SECONDS, wait_until

PROGRAM = "redis-server"
REDIS_MISSING = "these tests need Redis: apt-get install redis-server"
PASSWORD = "not-to-be-seen"
SLOTS = 16384
"""The hash slots of a cluster."""


@dataclass
class RedisServer:
    """A server on loopback.

    Attributes:
        address: What `CLEW_LIVE` is set to.
        port: Its port.
        options: Its command line.
    """

    address: str
    port: int
    options: tuple[str, ...] = ()
    _exits: AsyncExitStack = field(default_factory=AsyncExitStack)
    _child: Child | None = None

    async def start(self) -> None:
        """Start it, empty."""
        program = _find_program()
        command = [program, "--port", str(self.port), "--bind", LOOPBACK, "--save", "", *self.options]
        child = await self._exits.enter_async_context(child_process("redis", command))
        self._child = child
        port = int(self.options[1]) if self.options[:1] == ("--tls-port",) else self.port
        await child.wait_until(lambda: accepts_connections(port), PATIENCE_SECONDS)

    async def kill(self) -> None:
        """Kill it."""
        assert self._child
        await self._child.kill()

    def pause(self) -> None:
        """Stop its process: connections stay open, and nothing is answered."""
        assert self._child
        os.kill(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let its process go on."""
        assert self._child
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGCONT)

    async def call(self, *command: object) -> Any:
        """Send a command, and return the answer."""
        async with Redis.from_url(self.address, protocol=2) as redis:
            send: Any = redis.execute_command
            return await send(*command)

    async def read_all(self) -> bytes:
        """Read all that the server keeps: the names, and the items of the streams."""
        async with Redis.from_url(self.address, protocol=2) as redis:
            names = await redis.keys("*")
            items = [await redis.xrange(name) for name in names]
        return repr((names, items)).encode()


@asynccontextmanager
async def run_redis(*options: str) -> AsyncIterator[RedisServer]:
    """Run a server. Without the program the test is skipped, in the gate it fails."""
    (port,) = free_ports(1)
    server = RedisServer(f"redis://{LOOPBACK}:{port}", port, options)
    async with server._exits:
        await server.start()
        try:
            yield server
        finally:
            server.resume()


@asynccontextmanager
async def run_secured_redis() -> AsyncIterator[RedisServer]:
    """Run a server with TLS and a password."""
    with tempfile.TemporaryDirectory(prefix="clew-redis-") as folder:
        make_certificates(Path(folder))
        (port,) = free_ports(1)
        pem, authority = f"{folder}/server.pem", f"{folder}/ca.crt"
        options = ("--tls-port", str(port), "--tls-cert-file", pem, "--tls-key-file", pem)
        more = ("--tls-ca-cert-file", authority, "--tls-auth-clients", "no", "--requirepass", PASSWORD)
        address = f"rediss://:{PASSWORD}@{LOOPBACK}:{port}?ssl_ca_certs={authority}"
        server = RedisServer(address, 0, (*options, *more))
        async with server._exits:
            await server.start()
            yield server


@asynccontextmanager
async def run_redis_cluster(size: int = 3) -> AsyncIterator[list[RedisServer]]:
    """Run a cluster, without replicas."""
    async with AsyncExitStack() as exits:
        servers = []
        for _ in range(size):
            folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="clew-redis-"))
            options = ("--cluster-enabled", "yes", "--dir", folder, "--cluster-config-file", "nodes.conf")
            servers.append(await exits.enter_async_context(run_redis(*options)))
        bounds = [SLOTS * number // size for number in range(size + 1)]
        for server, first, end in zip(servers, bounds, bounds[1:], strict=False):
            await server.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            await server.call("CLUSTER", "MEET", LOOPBACK, servers[0].port)

        async def is_ready() -> bool:
            states = await asyncio.gather(*(server.call("CLUSTER", "INFO") for server in servers))
            return all("cluster_state:ok" in str(state) and f"cluster_size:{size}" in str(state) for state in states)

        await wait_until(is_ready)
        yield servers


def _find_program() -> str:
    program = shutil.which(PROGRAM)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(REDIS_MISSING)
        pytest.skip(REDIS_MISSING)
    return program
