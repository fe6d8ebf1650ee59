"""The `Stack` that most tests use: a Temporal server, a worker in this process, and scripted models."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any

from clew import Clew, Session
from clew.local import Reply, ScriptedModel, TemporalServer
from clew.local.scripted import Script
from clew_activities.archive import Store
from clew_activities.checkpoints import Keys

KEYS = Keys({"test": b"k" * 32})
"""The keys with which the worker signs checkpoints."""


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


def get_last_message(body: dict[str, Any]) -> dict[str, Any]:
    """Get the last message of a model's request body."""
    message: dict[str, Any] = body["messages"][-1]
    return message
