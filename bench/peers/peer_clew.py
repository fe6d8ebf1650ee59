"""Clew: a session through its Python client, and a worker in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers.conversation import INSTRUCTIONS, MOST_MODEL_CALLS, look_up
from bench.peers.service import Options, Peer, Size
from bench.peers.temporal import measure_runs
from clew import Clew, ContextPolicy, Session, tool
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import WorkerSettings, make_worker

PACKAGES = ("clew", "temporalio")
# All of the conversation is in every context, as with the other agents.
_POLICY = ContextPolicy(max_input_tokens=2_000_000, reserve_output_tokens=2_000)


class ClewPeer:
    """Sessions."""

    def __init__(self, clew: Clew, store: Path) -> None:
        self._clew = clew
        self._store = store
        self._sessions: dict[str, Session] = {}

    async def say(self, conversation: str, turn: str, text: str) -> str:
        """Send a message and return the answer."""
        session = self._sessions.get(conversation)
        if session is None:
            session = await self._clew.open(
                conversation,
                model="bench:any",
                system_prompt=INSTRUCTIONS,
                tools=["look_up"],
                context_policy=_POLICY,
                max_iterations=MOST_MODEL_CALLS,
            )
            self._sessions[conversation] = session
        return await session.ask(text, request_id=turn)

    async def resume(self, conversation: str, turn: str, text: str) -> str:
        """Ask for the outcome of a request: the same id has no second effect."""
        return await self.say(conversation, turn, text)

    async def measure(self, conversation: str) -> Size:
        """Sum the histories, and the files of the archive."""
        size = await measure_runs(self._clew.temporal, self._sessions[conversation].id)
        stored = sum(path.stat().st_size for path in self._store.rglob("*") if path.is_file())
        return Size(size.bytes, size.events, size.runs, stored)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    clew = await Clew.connect(options.temporal)
    store = options.folder / "store"
    store.mkdir(exist_ok=True)
    async with make_http_client() as http:
        worker = make_worker(
            clew.temporal,
            WorkerSettings(
                task_queue="clew",
                providers=load_providers({"CLEW_PROVIDER_BENCH_BASE_URL": options.model}),
                tools={"look_up": tool(look_up)},
                store=Store.from_url(store.as_uri()),
            ),
            http,
        )
        async with worker:
            yield ClewPeer(clew, store)
