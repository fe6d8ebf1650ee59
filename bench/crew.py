"""Two worker processes for one server, which the benchmark may kill."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType

from clew.local import Worker, worker_process

# Log records that count as trouble: errors, nondeterminism and deadlocks.
_TROUBLE = (
    *(" ERROR ", " CRITICAL ", "deadlock", "Failed activation", "Eviction processed"),
    *("Failing workflow task", "Nondeterminism", "[TMPRL1100]", "[TMPRL1101]"),
)
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\d[ T])", re.MULTILINE)


class Crew:
    """Two workers. A killed worker is replaced while the other continues to serve.

    Attributes:
        kills: Workers killed so far.
        trouble: Log records that report trouble.
    """

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
        """Kill one worker with SIGKILL and start another."""
        index = chance.randrange(len(self._members))
        worker, stack = self._members[index]
        await worker.kill()
        self.kills += 1
        self._read_log(worker)
        await stack.aclose()
        self._members[index] = await self._begin()

    def measure_resident_bytes(self) -> int:
        """Measure the resident memory of the larger worker."""
        pids = ",".join(str(worker.pid) for worker, _ in self._members)
        result = subprocess.run(["ps", "-o", "rss=", "-p", pids], capture_output=True, text=True, check=True)
        return max(map(int, result.stdout.split())) * 1024

    async def _begin(self) -> tuple[Worker, AsyncExitStack]:
        stack = AsyncExitStack()
        worker = await stack.enter_async_context(worker_process(self._address, env=self._env, tools=["bench.tools"]))
        return worker, stack

    def _read_log(self, worker: Worker) -> None:
        records = _RECORD.split(worker.log.read_text(errors="replace"))
        self.trouble += [record.strip()[:2000] for record in records if any(word in record for word in _TROUBLE)]
