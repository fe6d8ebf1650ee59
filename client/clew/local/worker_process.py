"""A worker in a process of its own, started as a user starts it: `python -m clew.worker`."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from clew import Clew, WorkerUnavailable
from clew.local.child import LOOPBACK, Child, child_process

_READY = "worker ready"
_START_SECONDS = 60.0
_LEAVE_SECONDS = 5.0


Worker = Child
"""A running worker. SIGTERM lets it finish its calls."""


@asynccontextmanager
async def worker_process(
    address: str,
    *,
    env: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
    namespace: str = "default",
    task_queue: str = "clew",
    folder: Path | None = None,
    on_output: Callable[[bytes], None] | None = None,
    module: str = "clew.worker",
) -> AsyncIterator[Worker]:
    """Run a worker. Entering the context waits until it polls; leaving the context stops it.

    Args:
        address: The Temporal frontend, `host:port`.
        env: Added to `inherited`, for example provider keys and base URLs.
        inherited: The environment that the worker has besides; None: this process's own.
        tools: Modules that define tools, importable in `folder` or installed.
        namespace: Temporal's namespace.
        task_queue: The worker's task queue.
        folder: The worker's current folder, from which it imports modules; None: this process's own.
        on_output: Gets a copy of all that the worker writes to its log.
        module: The module to run, which starts a worker as `clew.worker` does.

    Raises:
        StartFailed: The worker ended, or did not begin to poll in time.
    """
    settings = {
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": namespace,
        "CLEW_TASK_QUEUE": task_queue,
        "CLEW_TOOLS": ",".join(tools),
        "PYTHONUNBUFFERED": "1",
    }
    # Ignore this shell's Temporal settings, keys and certificates, and its proxy.
    own = os.environ if inherited is None else inherited
    kept = {name: value for name, value in own.items() if not name.startswith("TEMPORAL_")}
    direct = {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
    environment = {**kept, **direct, **(env or {}), **settings}
    command = [sys.executable, "-m", module]
    async with child_process(
        "worker", command, env=environment, folder=folder, on_output=on_output, grace_seconds=_LEAVE_SECONDS
    ) as child:

        async def ready() -> bool:
            # The worker logs that it begins to poll; the server knows it after the first poll has arrived.
            return _READY in child.log.read_text(errors="replace") and await _has_poller(
                address, namespace, task_queue
            )

        await child.wait_until(ready, _START_SECONDS)
        yield child


async def _has_poller(address: str, namespace: str, task_queue: str) -> bool:
    clew = await Clew.connect(address, namespace=namespace, task_queue=task_queue)
    try:
        await clew.check_worker()
    except WorkerUnavailable:
        return False
    return True
