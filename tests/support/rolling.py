"""Workers whose sessions roll over often, and helpers for tests of such sessions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from obstore.store import MemoryStore
from temporalio.api.enums.v1 import EventType

from clew import Clew, ContextPolicy, Session
from clew.local import Reply
from clew_activities.archive import Store, StoreUnavailable
from clew_activities.archive.backends import Bucket
from clew_workflows.protocol import RolloverThresholds
from tests.support.stack import Stack, get_last_message, make_client, serve
from tests.support.waiting import wait_until

QUICK_ROLLOVERS = {"history.workflowIdReuseMinimalInterval": "50ms"}
"""A server's dynamic configuration: it begins the next workflow run at once.

By default it waits until the run before is a second old.
"""
OFTEN = RolloverThresholds(events=80, bytes=200_000, updates=40, signals=60)


@asynccontextmanager
async def run_rolling_worker(
    stack: Stack,
    thresholds: RolloverThresholds = OFTEN,
    store: Store | None = None,
    *,
    task_queue: str | None = None,
    **options: Any,
) -> AsyncIterator[Clew]:
    """Run a worker with its own task queue and low rollover thresholds, and connect a client to it.

    `options`: those of `WorkerSettings`.
    """
    clew = Clew(stack.clew.temporal, task_queue) if task_queue else make_client(stack)
    async with serve(clew, stack.environ, store=store or stack.store, thresholds=thresholds, **options):
        yield clew


def make_id() -> str:
    """Make a unique session id."""
    return f"test-{uuid.uuid4().hex}"


async def list_runs(clew: Clew, session_id: str) -> list[str]:
    """List the workflow runs of a session, the newest first."""
    runs: list[str] = []
    run_id = (await clew.temporal.get_workflow_handle(session_id).describe()).run_id
    while run_id:
        runs.append(run_id)
        history = await clew.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return runs


async def wait_for_failed_task(clew: Clew, session_id: str) -> None:
    """Wait until a workflow task of a session has failed."""
    handle = clew.temporal.get_workflow_handle(session_id)

    async def has_failed() -> bool:
        return (await handle.describe()).raw_description.pending_workflow_task.attempt > 1

    await wait_until(has_failed)


async def list_model_queues(clew: Clew, session: Session) -> list[str]:
    """List the task queues of a session's model calls, in order."""
    history = await clew.temporal.get_workflow_handle(session.id).fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    return [attributes.task_queue.name for attributes in scheduled if attributes.activity_type.name == "call_model"]


class FailingStore(Store):
    """A store with failures that a test switches on.

    Attributes:
        away: Every operation fails.
        stateless: Reads of carried states fail.
        silent: A `replace` is done, but its answer is lost.
        ready: While it is not set, a `replace` waits.
    """

    def __init__(self) -> None:
        super().__init__(Bucket(MemoryStore()))
        self.away = self.stateless = self.silent = False
        self.ready = asyncio.Event()
        self.ready.set()

    def _check(self, path: str = "") -> None:
        if self.away or (self.stateless and "/states/" in path):
            raise StoreUnavailable("somewhere", "it is away")

    async def get(self, path: str) -> bytes:
        self._check(path)
        return await super().get(path)

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        self._check()
        await self.ready.wait()
        await super().replace(path, data, accepts)
        if self.silent:
            raise StoreUnavailable("somewhere", "the answer is lost")

    async def put(self, path: str, data: bytes) -> None:
        self._check()
        await super().put(path, data)

    async def put_new(self, path: str, data: bytes) -> None:
        self._check()
        await super().put_new(path, data)


class SlowModel:
    """A model whose replies wait until the test releases them, one by one."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply] | None = None) -> None:
        self.called: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gate = asyncio.Semaphore(0)
        self._answer = answer or (lambda body: Reply(f"re: {get_last_message(body)['content']}"))

    async def __call__(self, body: dict[str, Any]) -> Reply:
        self.called.put_nowait(body)
        await self._gate.acquire()
        return self._answer(body)

    async def wait_for_call(self) -> dict[str, Any]:
        """Wait for the next call, and return its body."""
        return await self.called.get()

    def release(self, count: int = 1) -> None:
        """Release that many replies."""
        for _ in range(count):
            self._gate.release()


def make_summary_policy(model: str) -> ContextPolicy:
    """Make the policy of sessions whose fourth long message has a model write a summary."""
    return ContextPolicy(
        max_input_tokens=400,
        reserve_output_tokens=100,
        keep_last_turns=1,
        summarization="request_new",
        summarization_model=model,
    )
