"""Sessions that decide about messages, or carry effects out, later than they accept them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle

from clew import Clew, Session
from clew_activities.archive import Store
from clew_workflows.host import execution
from clew_workflows.protocol import Effect
from clew_workflows.session.state import State
from tests.support.archives import Failing
from tests.support.stack import Stack, make_client, serve
from tests.support.waiting import wait_until


class HoldingStore(Failing):
    """A store whose descriptions of blobs are not read while it holds them.

    Attributes:
        asked: A description was to be read.
        free: The descriptions are read.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def get(self, path: str) -> bytes:
        if "/blobs/" in path:
            self.asked.set()
            await self.free.wait()
        return await super().get(path)


@asynccontextmanager
async def run_holding_worker(stack: Stack, **options: Any) -> AsyncIterator[tuple[Clew, HoldingStore]]:
    """Run a worker with its own task queue and a store that holds blobs, and connect a client to it."""
    store = HoldingStore(stack.store)
    async with serve(make_client(stack), stack.environ, store=store, **options) as clew:
        try:
            yield clew, store
        finally:
            store.free.set()


@asynccontextmanager
async def hold_intake(session: Session, store: HoldingStore) -> AsyncIterator[None]:
    """Let a session decide about nothing while the body runs: it waits for a blob that is looked up."""
    data = session.id.encode()
    blob = {"digest": hashlib.sha256(data).hexdigest(), "media_type": "image/png", "bytes": len(data)}
    part = {"type": "image", "blob": blob}
    await session._handle.workflow.signal("inject", {"content": [part], "input_id": "held"})
    await store.asked.wait()
    try:
        yield
    finally:
        store.free.set()


@contextmanager
def note_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note the names of the queries that sessions have answered to clients of this process."""
    names: list[str] = []
    query = WorkflowHandle.query

    async def note(self: WorkflowHandle[Any, Any], name: str, *args: Any, **options: Any) -> Any:
        answer = await query(self, name, *args, **options)
        names.append(name)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(WorkflowHandle, "query", note)
        yield names


async def wait_for_answers(names: list[str], name: str, count: int = 1) -> None:
    """Wait until a query has been answered so often."""
    await wait_until(lambda: names.count(name) >= count)


def delay_effects(monkeypatch: pytest.MonkeyPatch, effect_type: type[Any]) -> None:
    """Let sessions wait for 3 seconds before they carry out effects of a type."""
    carry_out: Any = execution.carry_out

    async def carry_out_later(effect: Effect, time_left: timedelta | None, state: State) -> Any:
        if isinstance(effect, effect_type):
            await workflow.sleep(3)
        return await carry_out(effect, time_left, state)

    monkeypatch.setattr(execution, "carry_out", carry_out_later)
