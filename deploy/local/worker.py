"""The project's worker, started as a user starts it: `python worker.py`."""

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from clew import Clew, WorkerUnavailable
from deploy.local.child import LOOPBACK, ROOT, Child, child_process

_READY = "worker ready"
_START_SECONDS = 60.0
_STOP_SECONDS = 25.0
_LEAVE_SECONDS = 5.0


@dataclass(frozen=True)
class Worker:
    """A running worker."""

    _child: Child

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def log(self) -> Path:
        """The file that it logs to; gone when the context ends."""
        return self._child.log

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._child.running

    async def kill(self) -> None:
        """Kill it with SIGKILL, as a machine that loses its power would; returns when it is gone."""
        await self._child.kill()

    async def stop(self, grace_seconds: float = _STOP_SECONDS) -> None:
        """Ask it to stop with SIGTERM: it finishes or hands over what it runs; SIGKILL if it takes longer."""
        await self._child.stop(grace_seconds)


@asynccontextmanager
async def worker_process(
    address: str,
    *,
    env: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
    namespace: str = "default",
    task_queue: str = "clew",
) -> AsyncIterator[Worker]:
    """Run a worker; it is polling when the context is entered and stopped when it is left.

    Args:
        address: The Temporal frontend, `host:port`.
        env: Added to this process's environment: provider keys and base URLs, most of all.
        tools: Modules that hold tools, importable from the checkout.
        namespace: Temporal's namespace.
        task_queue: The task queue that it serves.

    Raises:
        StartFailed: It ended, or did not begin to poll in time.
    """
    settings = {
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": namespace,
        "CLEW_TASK_QUEUE": task_queue,
        "CLEW_TOOLS": ",".join(tools),
        "PYTHONUNBUFFERED": "1",
    }
    # This shell's own Temporal, its keys and certificates, is not meant; a proxy has no part in it either.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    direct = {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
    whole = {**inherited, **direct, **(env or {}), **settings}
    command = [sys.executable, str(ROOT / "worker.py")]
    async with child_process("worker", command, env=whole, grace_seconds=_LEAVE_SECONDS) as child:

        async def ready() -> bool:
            # It says so when it begins to poll; the server knows of it when the first poll has arrived.
            return _READY in child.log.read_text(errors="replace") and await _polled(address, namespace, task_queue)

        await child.wait_until(ready, _START_SECONDS)
        yield Worker(child)


async def _polled(address: str, namespace: str, task_queue: str) -> bool:
    clew = await Clew.connect(address, namespace=namespace, task_queue=task_queue)
    try:
        await clew.check_worker()
    except WorkerUnavailable:
        return False
    return True
