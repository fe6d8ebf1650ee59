"""One world for all tests of a process: the real Temporal server, a worker in this process, models by script."""

from __future__ import annotations

import itertools
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from clew import Clew, Session
from clew_activities.archive import Store
from clew_activities.checkpoint_tokens import Keys
from clew_activities.providers import http_client, providers_from_env
from clew_activities.run_tool import load_tools
from deploy.local import Reply, ScriptedModel, TemporalServer, scripted_model, temporal_server
from deploy.local.scripted import Script
from tests import toolbox
from worker import make_worker


def pytest_configure() -> None:
    """What is started in the background of a shell ignores SIGINT, and so would all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


KEYS = Keys({"test": b"k" * 32})
"""What the world's worker signs checkpoints with."""


@dataclass
class World:
    """What tests hold: a client, and models that answer as each test says."""

    clew: Clew
    server: TemporalServer
    provider: ScriptedModel
    scripts: dict[str, Script]
    store: Store
    names: itertools.count[int] = field(default_factory=itertools.count)

    def model(self, script: Script | str) -> str:
        """A model of its own for one test; a string is what it always says."""
        name = f"m{next(self.names)}"
        self.scripts[name] = (lambda _body: Reply(script)) if isinstance(script, str) else script
        return f"scripted:{name}"

    async def open(self, script: Script | str = "fine", **config: Any) -> Session:
        """A session of its own for one test."""
        return await self.clew.open(f"test-{uuid.uuid4().hex}", model=self.model(script), **config)

    def requests_to(self, session_model: str) -> list[dict[str, Any]]:
        """The bodies that a model of this world has received."""
        return [body for body in self.provider.requests if body["model"] == session_model.partition(":")[2]]


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[TemporalServer]:
    """A Temporal server, without its UI; workers in processes of their own keep their archive where it says."""
    async with temporal_server(ui=False) as running:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLEW_STORE", running.store)
            yield running


@pytest.fixture(scope="session")
async def world(server: TemporalServer) -> AsyncIterator[World]:
    """The world: a worker in this process that serves the toolbox and the scripted models."""
    scripts: dict[str, Script] = {}
    store = Store.from_url("memory://")
    async with scripted_model(lambda body: scripts[body["model"]](body)) as provider, http_client() as http:
        clew = await Clew.connect(server.address)
        worker = make_worker(
            clew.temporal,
            task_queue=clew.task_queue,
            providers=providers_from_env({"CLEW_PROVIDER_SCRIPTED_BASE_URL": provider.base_url}),
            tools=load_tools([toolbox.__name__]),
            http=http,
            store=store,
            keys=KEYS,
        )
        async with worker:
            yield World(clew, server, provider, scripts, store)


def last(body: dict[str, Any]) -> dict[str, Any]:
    """The newest message that a model was shown."""
    message: dict[str, Any] = body["messages"][-1]
    return message


Check = Callable[[Any], bool]
