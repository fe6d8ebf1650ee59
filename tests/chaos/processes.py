"""Workers that are killed and stopped and whose clocks jump, servers that crash, and buckets."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from clew.errors import ClewError
from clew.local import StartFailed, TemporalServer, Worker, temporal_server, worker_process
from clew.local.child import LOOPBACK, Child, child_process, free_ports
from deploy.local_cluster import LocalCluster, local_cluster
from tests.chaos.worker import CACHED_SESSIONS
from tests.support.rolling import QUICK_ROLLOVERS
from tests.support.s3 import make_s3_env

CACHES = (0, 2, 1000)
"""The sizes of the workers' caches: the first replays a session at every task."""
MAX_RESIDENT_BYTES = 1_200_000_000
"""Memory of a worker from which on it counts as a leak."""
_RETRY_SECONDS = 0.5
_FAKETIME = (
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"),
)
# Log records that no fault excuses.
_WRONG = ("panicked at",)
NO_CLOCKS = "no clock can jump: install Debian's libfaketime, or do without with --without-clocks"
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\d[ T])", re.MULTILINE)


class NoClocks(RuntimeError):
    """The library that changes clocks is not installed."""


def find_faketime() -> Path | None:
    """Find the library that changes a process's clock (Debian: libfaketime); None: it is not installed."""
    return next((path for path in _FAKETIME if path.exists()), None)


class Workers:
    """Worker processes. One that is killed, or ends by itself, is started again, as an orchestrator does it.

    Attributes:
        kills: Workers killed so far.
        stops: Workers stopped and continued so far.
        jumps: Changes of a worker's clock so far.
        largest: The largest memory of a worker so far, in bytes.
    """

    def __init__(self, address: str, env: Mapping[str, str], folder: Path) -> None:
        self.kills = self.stops = self.jumps = self.largest = 0
        self._members = [_Member(address, env, folder, number) for number in range(len(CACHES))]

    @property
    def records(self) -> list[str]:
        """Log records that no fault excuses, of workers that have ended."""
        return [record for member in self._members for record in member.records]

    async def __aenter__(self) -> Workers:
        await asyncio.gather(*(member.start() for member in self._members))
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(member.end() for member in self._members))

    async def _watch(self) -> None:
        """Start workers again that have ended by themselves, or whose kill was broken off."""
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            for member in self._members:
                async with member.lock:
                    if not member.is_running:
                        await member.end()
                        await member.start()

    async def kill(self, number: int, seconds: float) -> None:
        """Kill a worker with SIGKILL, and start it again after some seconds."""
        member = self._members[number]
        async with member.lock:
            await member.kill()
            self.kills += 1
            await asyncio.sleep(seconds)
            await member.start()

    async def stop(self, number: int, seconds: float) -> None:
        """Stop a worker with SIGSTOP, and let it continue after some seconds."""
        member = self._members[number]
        async with member.lock:
            member.send(signal.SIGSTOP)
            self.stops += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                member.send(signal.SIGCONT)

    async def change_clock(self, number: int, offset: int, seconds: float) -> None:
        """Let a worker's wall clock jump by an offset, and back after some seconds.

        Raises:
            NoClocks: The library that changes clocks is not installed.
        """
        if find_faketime() is None:
            raise NoClocks(NO_CLOCKS)
        self.jumps += 1
        self._members[number].write_offset(offset)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._members[number].write_offset(0)

    async def change_environment(self, changes: Mapping[str, str]) -> None:
        """Restart one worker after the other with other variables, as a rolling deployment does."""
        for member in self._members:
            async with member.lock:
                await member.end()
                await member.start(changes)

    def measure(self) -> None:
        """Note the memory of the largest worker."""
        for member in self._members:
            self.largest = max(self.largest, member.measure_resident_bytes())


def send_signal(process: Child | None, number: signal.Signals) -> None:
    """Send a signal to a process, if it runs."""
    if process and process.running:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


class _Member:
    def __init__(self, address: str, env: Mapping[str, str], folder: Path, number: int) -> None:
        self.lock = asyncio.Lock()
        self.records: list[str] = []
        self._address = address
        self._clock = folder / f"clock-{number}"
        self._log = folder / f"worker-{number}.log"
        self._env = {**env, CACHED_SESSIONS: str(CACHES[number])}
        if library := find_faketime():
            self._env |= {
                "LD_PRELOAD": str(library),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",
            }
        self._worker: Worker | None = None
        self._stack = AsyncExitStack()

    async def start(self, changes: Mapping[str, str] | None = None) -> None:
        """Start the worker, as often as it takes: the server may be away. It keeps the changed variables."""
        self._env |= changes or {}
        self.write_offset(0)
        while True:
            running = worker_process(self._address, env=self._env, module="tests.chaos.worker")
            try:
                self._worker = await self._stack.enter_async_context(running)
                return
            except (StartFailed, ClewError):
                await asyncio.sleep(_RETRY_SECONDS)

    @property
    def is_running(self) -> bool:
        """Whether its process runs, or is stopped."""
        return self._worker is not None and self._worker.running

    async def kill(self) -> None:
        if self._worker:
            await self._worker.kill()
        await self.end()

    async def end(self) -> None:
        self.send(signal.SIGCONT)
        self._read_log()
        self._worker = None
        await self._stack.aclose()

    def send(self, number: signal.Signals) -> None:
        send_signal(self._worker, number)

    def write_offset(self, seconds: int) -> None:
        self._clock.write_text(f"{seconds:+d}\n")

    def measure_resident_bytes(self) -> int:
        if self._worker is None or not self._worker.running:
            return 0
        with suppress(OSError):
            pages = int(Path(f"/proc/{self._worker.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def _read_log(self) -> None:
        if self._worker is None:
            return
        text = self._worker.log.read_text(errors="replace")
        with self._log.open("a") as log:
            log.write(text)
        records = _RECORD.split(text)
        self.records += [record.strip() for record in records if any(word in record for word in _WRONG)]


class Server(ABC):
    """A Temporal server that crashes and comes back at the same address, and a server that speaks S3.

    Attributes:
        crashes: Crashes so far.
        bucket: Host and port of the server with the bucket `clew`.
    """

    def __init__(self, folder: Path) -> None:
        self.crashes = 0
        self.bucket = ""
        self._folder = folder
        self._stack = AsyncExitStack()
        self._crashing = asyncio.Lock()

    @property
    @abstractmethod
    def address(self) -> str:
        """The address of Temporal's server."""

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def crash(self, seconds: float) -> None:
        """Kill Temporal's server with SIGKILL, and start it again on its database after some seconds."""
        if self._crashing.locked():
            return
        async with self._crashing:
            self.crashes += 1
            await self._restart(seconds)

    def make_store_env(self, address: str) -> dict[str, str]:
        """Make the environment of a process whose bucket is at an address: this server's, or a proxy before it."""
        return make_s3_env(f"http://{address}")

    @abstractmethod
    def list_files(self) -> list[Path]:
        """List the files of the database, and the logs."""

    @abstractmethod
    def list_logs(self) -> Mapping[str, Path]:
        """List the logs that are not in the folder of the round, by name."""

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _restart(self, seconds: float) -> None: ...


class DevelopmentServer(Server):
    """The development server with a database file, and Moto."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self._running = AsyncExitStack()
        self._temporal: TemporalServer

    @property
    def address(self) -> str:
        """The address of Temporal's server."""
        return f"{LOOPBACK}:{self._port}"

    def list_files(self) -> list[Path]:
        """List the files of the database, and the logs."""
        return [*self._folder.glob("temporal.db*"), *self._folder.glob("*.log")]

    def list_logs(self) -> Mapping[str, Path]:
        """List the logs that are not in the folder of the round, by name."""
        return {}

    async def _start(self) -> None:
        self.bucket = await self._stack.enter_async_context(_run_moto())
        self._stack.push_async_callback(self._end)
        await self._start_temporal()

    async def _restart(self, seconds: float) -> None:
        await self._temporal.kill()
        await self._end()
        await asyncio.sleep(seconds)
        await self._start_temporal()

    async def _end(self) -> None:
        await self._running.aclose()

    async def _start_temporal(self) -> None:
        database = self._folder / "temporal.db"
        while True:
            server = temporal_server(ui=False, port=self._port, db_filename=database, dynamic_config=QUICK_ROLLOVERS)
            try:
                self._temporal = await self._running.enter_async_context(server)
                return
            except StartFailed as error:
                if "taken" not in str(error):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)


class ClusterServer(Server):
    """The local cluster: Temporal on PostgreSQL with several shards, and SeaweedFS."""

    _cluster: LocalCluster

    @property
    def address(self) -> str:
        """The address of Temporal's server."""
        return self._cluster.server.address

    def make_store_env(self, address: str) -> dict[str, str]:
        """Make the environment of a process whose bucket is at an address: SeaweedFS, or a proxy before it."""
        return {**self._cluster.store_settings, "AWS_ENDPOINT_URL": f"http://{address}"}

    def list_files(self) -> list[Path]:
        """List the files of the database, and the logs."""
        files = [path for path in (self._cluster.folder / "postgresql").rglob("*") if path.is_file()]
        return [*files, *self._folder.glob("*.log"), *self._cluster.logs.values()]

    def list_logs(self) -> Mapping[str, Path]:
        """List the logs that are not in the folder of the round, by name."""
        return self._cluster.logs

    async def _start(self) -> None:
        cluster = local_cluster(dynamic_config=QUICK_ROLLOVERS, parts=())
        self._cluster = await self._stack.enter_async_context(cluster)
        self.bucket = self._cluster.s3_address.removeprefix("http://")

    async def _restart(self, seconds: float) -> None:
        await self._cluster.crash(seconds)


SERVERS: Mapping[str, type[Server]] = {"development": DevelopmentServer, "cluster": ClusterServer}
"""The servers that a round may run on."""


@asynccontextmanager
async def _run_moto() -> AsyncIterator[str]:
    """Run a server that speaks S3, with the bucket `clew`; yields `host:port`."""
    (port,) = free_ports(1)
    command = ["moto_server", "--host", LOOPBACK, "--port", str(port)]
    async with child_process("bucket", command) as child:
        address = f"{LOOPBACK}:{port}"

        async def make_bucket() -> bool:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                writer.write(f"PUT /clew HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n".encode())
                answer = await reader.readuntil(b"\r\n")
                writer.close()
                return b" 200 " in answer
            return False

        await child.wait_until(make_bucket, 60)
        yield address
