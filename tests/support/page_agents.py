"""The agent and the backend that a page writes, run beside a stack of the tests."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

from clew import Agent, Clew
from tests.support.command_line import make_environment
from tests.support.stack import Stack, make_client, run_deployment
from tests.support.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def deploy_agent(stack: Stack, code: str, name: str, model: str) -> AsyncIterator[Clew]:
    """Run a worker with the agent of a module's code, with a model instead of the page's."""
    client, module = make_client(stack), ModuleType(name)
    exec(code.replace("openai:gpt-4o-mini", model), vars(module))
    agent = getattr(module, name)
    assert isinstance(agent, Agent)
    async with run_deployment(stack, client, agent):
        yield client


async def run_backend(stack: Stack, client: Clew, code: str, session_id: str) -> str:
    """Run the code of a backend, with another id than the page's session has. Returns what it prints."""
    where = f'"{stack.server.address}", task_queue="{client.task_queue}"'
    typed = code.replace('"localhost:7233"', where).replace(session_id, f"page-{uuid.uuid4().hex}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", typed), env=make_environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return out.decode()
