"""Workers in processes of their own, for tests that kill them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clew import Clew, Session
from clew.local import Worker, worker_process
from tests.support.stack import Stack


@asynccontextmanager
async def run_worker_process(stack: Stack, task_queue: str, **settings: str) -> AsyncIterator[Worker]:
    """Run a worker in a process of its own."""
    env = {"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url, **settings}
    address = stack.server.address
    async with worker_process(address, env=env, tools=["tests.support.toolbox"], task_queue=task_queue) as running:
        yield running


async def open_session_on(stack: Stack, task_queue: str, script: Any, **config: Any) -> Session:
    """Open a session on the workers of one task queue."""
    clew = Clew(stack.clew.temporal, task_queue)
    return await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model(script), **config)
