"""Sessions that get thousands of signals while no worker runs: the next worker serves others, and ends by itself."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from clew import Session
from clew_workflows.host.intake import MAX_UNDECIDED
from tests.support.processes import open_session_on, run_worker_process
from tests.support.stack import Stack
from tests.support.waiting import wait_until

FLOODED = 4
SIGNALS = 2_000
AT_ONCE = 50
SECONDS = 30.0
"""Most seconds that another session waits for its answer, on a machine that other tests use."""


async def flood(stack: Stack, session: Session) -> None:
    """Send signals to a session, as a client with a fault does."""
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    for first in range(0, SIGNALS, AT_ONCE):
        await asyncio.gather(*(handle.signal("steer", {"content": f"{first}-{n}"}) for n in range(AT_ONCE)))


@pytest.mark.slow
async def test_a_worker_behind_a_flood_serves_others_and_ends_by_itself(stack: Stack) -> None:
    """Another session is answered while the flooded ones are served. SIGTERM amid that ends with status 0."""
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue):
        flooded = [await open_session_on(stack, queue, "fine") for _ in range(FLOODED)]
        other = await open_session_on(stack, queue, "fine")
        assert await other.ask("hello") == "fine"
    await asyncio.gather(*(flood(stack, session) for session in flooded))
    async with run_worker_process(stack, queue) as worker:
        begin = time.monotonic()
        assert await other.ask("again") == "fine"
        assert time.monotonic() - begin < SECONDS
        worker.process.terminate()
        assert await worker.wait_for_end() == 0
    async with run_worker_process(stack, queue):

        async def is_served() -> bool:
            entries = [await session.entries(kind="input", limit=1) for session in flooded]
            return all(entries)

        await wait_until(is_served)
        assert [await session.ask("go on") for session in flooded] == ["fine"] * FLOODED
        refused = await flooded[0].entries(kind="input")
        assert MAX_UNDECIDED <= len(refused) < SIGNALS
