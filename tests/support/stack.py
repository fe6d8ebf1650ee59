"""The `Stack` that most tests use: a Temporal server, a worker in this process, and scripted models; more workers."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from clew import Agent, Clew, Session
from clew.errors import WorkerUnavailable
from clew.local import Reply, ScriptedModel, TemporalServer
from clew.local.scripted import Script
from clew.tools import ToolDefinition
from clew_activities.archive import Store
from clew_activities.checkpoint_signing import Keys
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.registry import load_tools
from clew_activities.worker import WorkerSettings, make_worker
from tests.support import toolbox
from tests.support.waiting import wait_until

KEYS = Keys({"test": b"k" * 32})
"""The keys with which the worker signs checkpoints."""
GRACE = timedelta(seconds=1)
"""Time of activities at a worker's end. An archive call queries its session, and may find no worker that answers."""


@dataclass
class Stack:
    """A client, and models whose replies each test scripts.

    Attributes:
        clew: The client.
        server: The Temporal server.
        provider: The model provider's server.
        scripts: The script of each model, by the model's name.
        store: The worker's store.
        names: Numbers for the names of models.
    """

    clew: Clew
    server: TemporalServer
    provider: ScriptedModel
    scripts: dict[str, Script]
    store: Store
    names: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of workers that know the scripted models."""
        return {"CLEW_PROVIDER_SCRIPTED_BASE_URL": self.provider.base_url}

    def add_model(self, script: Script | str) -> str:
        """Register a model for one test; a string is its constant reply."""
        name = f"m{next(self.names)}"
        self.scripts[name] = (lambda _body: Reply(script)) if isinstance(script, str) else script
        return f"scripted:{name}"

    async def open(self, script: Script | str = "fine", **config: Any) -> Session:
        """Open a session with a new id, and a model of its own."""
        return await self.clew.open(f"test-{uuid.uuid4().hex}", model=self.add_model(script), **config)

    def list_requests(self, session_model: str) -> list[dict[str, Any]]:
        """List the request bodies that a model has received."""
        return [body for body in self.provider.requests if body["model"] == session_model.partition(":")[2]]


@asynccontextmanager
async def serve(clew: Clew, environ: Mapping[str, str], **options: Any) -> AsyncIterator[Clew]:
    """Run a worker in this process for the task queue of a client, with the providers of an environment.

    `options`: those of `WorkerSettings`. Without others it has the tools of the toolbox, and a store of its own.
    """
    async with make_http_client() as http:
        own: dict[str, Any] = {
            "tools": load_tools([toolbox.__name__]),
            "keys": KEYS,
            "store": Store.from_url("memory://"),
            "grace": GRACE,
            **options,
        }
        settings = WorkerSettings(task_queue=clew.task_queue, providers=load_providers(environ), **own)
        async with make_worker(clew.temporal, settings, http):
            yield clew


def make_client(stack: Stack) -> Clew:
    """Make a client with a task queue of its own, which no worker serves yet."""
    return Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")


@asynccontextmanager
async def run_deployment(
    stack: Stack, clew: Clew, *agents: Agent, tools: tuple[ToolDefinition, ...] = (), **options: Any
) -> AsyncIterator[None]:
    """Run a worker with these agents and tools on the task queue of a client. `options`: those of `WorkerSettings`.

    The body begins when the server knows of the worker: commands ask it before they open a session.
    """
    # A connection has at most one worker for each task queue.
    connection = await Clew.connect(stack.server.address, task_queue=clew.task_queue)
    named = {tool.name: tool for tool in tools}

    async def is_known() -> bool:
        with suppress(WorkerUnavailable):
            await connection.check_worker()
            return True
        return False

    async with serve(connection, stack.environ, agents=agents, tools=named, store=stack.store, **options):
        await wait_until(is_known)
        yield


def get_last_message(body: dict[str, Any]) -> dict[str, Any]:
    """Get the last message of a model's request body."""
    message: dict[str, Any] = body["messages"][-1]
    return message
