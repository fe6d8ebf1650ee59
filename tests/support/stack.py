"""What most tests run against: a Temporal server, a worker in this process, and models that answer by script."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any

from clew import Clew, Session
from clew_activities.archive import Store
from clew_activities.checkpoint_tokens import Keys
from deploy.local import Reply, ScriptedModel, TemporalServer
from deploy.local.scripted import Script

KEYS = Keys({"test": b"k" * 32})
"""What the worker signs checkpoints with."""


@dataclass
class Stack:
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


def last(body: dict[str, Any]) -> dict[str, Any]:
    """The newest message that a model was shown."""
    message: dict[str, Any] = body["messages"][-1]
    return message
