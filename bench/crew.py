"""Two worker processes that serve one server, and that may be killed."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType

from deploy.local import Worker, worker_process

# Of what the SDK warns by number: nondeterminism and deadlocks.
_TROUBLE = (
    *(" ERROR ", " CRITICAL ", "deadlock", "Failed activation", "Eviction processed"),
    *("Failing workflow task", "Nondeterminism", "[TMPRL1100]", "[TMPRL1101]"),
)
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\d[ T])", re.MULTILINE)


class Crew:
    """Two workers. One that is killed is replaced while the other serves on; `trouble` is what they logged of it."""

    def __init__(self, address: str, env: Mapping[str, str]) -> None:
        self.kills = 0
        self.trouble: list[str] = []
        self._address = address
        self._env = env
        self._members: list[tuple[Worker, AsyncExitStack]] = []

    async def __aenter__(self) -> Crew:
        self._members = list(await asyncio.gather(self._begin(), self._begin()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker, stack in self._members:
            self._read_log(worker)
            await stack.aclose()

    async def kill(self, chance: random.Random) -> None:
        """Kill one without a warning, and put another in its place."""
        place = chance.randrange(len(self._members))
        worker, stack = self._members[place]
        await worker.kill()
        self.kills += 1
        self._read_log(worker)
        await stack.aclose()
        self._members[place] = await self._begin()

    def resident_bytes(self) -> int:
        """The resident memory of the larger one."""
        pids = ",".join(str(worker.pid) for worker, _ in self._members)
        told = subprocess.run(["ps", "-o", "rss=", "-p", pids], capture_output=True, text=True, check=True)
        return max(map(int, told.stdout.split())) * 1024

    async def _begin(self) -> tuple[Worker, AsyncExitStack]:
        stack = AsyncExitStack()
        worker = await stack.enter_async_context(worker_process(self._address, env=self._env, tools=["bench.tools"]))
        return worker, stack

    def _read_log(self, worker: Worker) -> None:
        said = _RECORD.split(worker.log.read_text(errors="replace"))
        self.trouble += [record.strip()[:2000] for record in said if any(word in record for word in _TROUBLE)]
