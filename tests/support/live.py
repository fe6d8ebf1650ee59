"""Workers and viewers with a live channel, and a model that says its words when a test has it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from clew import Clew, Session
from tests.support.provider_server import FakeServer, Step, encode_events, make_chunk, run_fake_server
from tests.support.rolling import make_id
from tests.support.stack import Stack, serve

MODEL = "speaker:m"
WORDS = 12


@dataclass
class Speaker:
    """A model that has said a part of its reply, and says the next word when it is told to.

    Attributes:
        server: Its server.
        words: The words of a reply.
    """

    server: FakeServer
    words: tuple[str, ...] = tuple(f"word{number} " for number in range(WORDS))
    _turns: list[asyncio.Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The reply."""
        return "".join(self.words)

    def begin(self) -> None:
        """Answer the next request, one word after the other."""
        self._turns = [asyncio.Event() for _ in self.words]
        steps: list[Step] = []
        for turn, word in zip(self._turns, self.words, strict=True):
            steps += [turn, encode_events([make_chunk(content=word)])]
        self.server.answer(*steps, encode_events([make_chunk("stop")]) + b"data: [DONE]\n\n")

    def say(self, count: int = 1) -> None:
        """Say the next words."""
        for turn in [turn for turn in self._turns if not turn.is_set()][:count]:
            turn.set()

    def end(self) -> None:
        """Say the rest."""
        self.say(len(self._turns))


@dataclass
class LiveStack:
    """A worker with a live channel, and its clients.

    Attributes:
        sender: A client without the channel.
        viewer: A client with it.
        speaker: The model.
    """

    sender: Clew
    viewer: Clew
    speaker: Speaker

    async def open(self, **config: Any) -> tuple[Session, Session]:
        """Open a session; returns the sender's and the viewer's handle of it."""
        session = await self.sender.open(make_id(), model=MODEL, **config)
        return session, self.viewer.session(session.id)


@asynccontextmanager
async def run_live(
    stack: Stack, address: str, *, worker_address: str | None = "", **options: Any
) -> AsyncIterator[LiveStack]:
    """Run a worker with a live channel.

    `worker_address`: the address that the worker has, if it is another one. `options`: those of `WorkerSettings`.
    """
    queue = f"live-{uuid.uuid4().hex}"
    sender = await Clew.connect(stack.server.address, task_queue=queue)
    viewer = await connect(stack, queue, address)
    live = address if worker_address == "" else worker_address
    async with run_fake_server() as server:
        environ = {**stack.environ, "CLEW_PROVIDER_SPEAKER_BASE_URL": server.url}
        async with serve(sender, environ, store=stack.store, live=live, **options):
            yield LiveStack(sender, viewer, Speaker(server))


async def connect(stack: Stack, queue: str, address: str) -> Clew:
    """Connect a viewer with a live channel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEW_LIVE", address)
        return await Clew.connect(stack.server.address, task_queue=queue)
