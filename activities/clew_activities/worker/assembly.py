"""Every workflow and activity of a worker, on the task queues that they are polled from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import httpx
from temporalio.client import Client
from temporalio.worker import Worker, WorkerTuner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from clew.model.tokens import ENCODINGS, load_encoding
from clew_activities.archive import Archive, Store
from clew_activities.archive_activities import ArchiveActivities
from clew_activities.call_model import ModelActivities
from clew_activities.checkpoint_activities import CheckpointActivities
from clew_activities.checkpoint_tokens import Keys
from clew_activities.delete_session import DeletionActivities
from clew_activities.fork_session import ForkingActivities
from clew_activities.heartbeat import INTERVAL_SECONDS
from clew_activities.prepare import PrepareActivities
from clew_activities.prices import load_prices
from clew_activities.providers import Providers
from clew_activities.read_context import ContextActivities
from clew_activities.read_thread import ReadingActivities
from clew_activities.run_tool import ToolActivities
from clew_activities.stored_results import Results
from clew_activities.summarize import SummaryActivities
from clew_activities.thread_source import Threads
from clew_activities.tools import Tools
from clew_activities.worker.capacity import Capacity
from clew_workflows.protocol import Thresholds, name_model_queue, name_tool_queue
from clew_workflows.services import SERVICES
from clew_workflows.session import AgentSession
from clew_workflows.shell.payload_converter import make_tolerant

GRACE = timedelta(seconds=20)
"""How long running activities may go on at a stop; then another worker takes them over."""
STICKY_TIMEOUT = timedelta(seconds=2)
"""How long a query of a killed worker's session waits for that worker before another one is asked."""

WORKFLOWS = (AgentSession, *SERVICES)
DEFAULT_THRESHOLDS = Thresholds()
DEFAULT_CAPACITY = Capacity()

# Pure and deterministic, and loaded once instead of once a session.
_PASSED_THROUGH = ("annotated_types", "clew", "clew_workflows", "pydantic", "pydantic_core", "rfc8785", "tiktoken")


class SessionWorker:
    """Temporal workers that start and stop together, one for each task queue: `async with` runs them."""

    def __init__(self, workers: Sequence[Worker], tools: ToolActivities) -> None:
        self._workers = workers
        self._tools = tools

    async def __aenter__(self) -> Self:
        """Start all of them. If one of them fails for good, the body is cancelled, and its error is raised."""
        for worker in self._workers:
            await worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all of them at once, so that they share one grace period."""
        stopped = await asyncio.gather(
            *(worker.__aexit__(kind, error, traceback) for worker in self._workers), return_exceptions=True
        )
        self._tools.close()
        for failure in stopped:
            if failure is not None:
                raise failure


def make_worker(
    client: Client,
    *,
    task_queue: str,
    providers: Providers,
    tools: Tools,
    http: httpx.AsyncClient,
    store: Store,
    keys: Keys | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    capacity: Capacity = DEFAULT_CAPACITY,
    grace: timedelta = GRACE,
    workflows: Sequence[type] = WORKFLOWS,
) -> SessionWorker:
    """Make a worker for sessions.

    Args:
        client: Connected to the namespace that is served.
        task_queue: Where sessions wait for workers. Model calls and tool calls have queues of their own beside it.
        providers: The model providers.
        tools: Every tool by its name.
        http: The client of all model calls.
        store: Where sessions are archived.
        keys: What checkpoint tokens are signed and verified with; without them there are no checkpoints.
        thresholds: When a session goes on in a new run of its workflow.
        capacity: How many activities run at once.
        grace: How long running activities may go on at a stop.
        workflows: What is served: the session and the services. All workers of a task queue have the same.

    Raises:
        EncodingUnavailable: a vocabulary cannot be loaded; a worker that counted otherwise would do harm.
    """
    load_encodings()
    load_prices()
    archive = Archive(store, client.namespace)
    archiving = ArchiveActivities(archive)
    preparing = PrepareActivities(providers, tools, archive, thresholds)
    checkpointing = CheckpointActivities(keys or Keys(), tools, archive, client.namespace)
    running = ToolActivities(tools, Results(archive, Threads(archive)))
    serving = _tolerant_client(client)

    def worker(
        queue: str, slots: int, activities: Sequence[Callable[..., Any]], hosted: Sequence[type] = ()
    ) -> Worker:
        return Worker(
            serving,
            task_queue=queue,
            workflows=hosted,
            activities=activities,
            tuner=WorkerTuner.create_fixed(activity_slots=slots),
            workflow_runner=make_workflow_sandbox(),
            graceful_shutdown_timeout=grace,
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            max_heartbeat_throttle_interval=timedelta(seconds=INTERVAL_SECONDS),
            default_heartbeat_throttle_interval=timedelta(seconds=INTERVAL_SECONDS),
        )

    models: list[Callable[..., Any]] = [
        ModelActivities(providers, http).call_model,
        SummaryActivities(providers, http, Threads(archive)).summarize,
    ]
    others: list[Callable[..., Any]] = [
        preparing.prepare,
        preparing.describe_model,
        archiving.archive,
        archiving.thaw,
        archiving.recall,
        checkpointing.sign_checkpoint,
        checkpointing.open_checkpoint,
        checkpointing.put_context,
        ReadingActivities(archive).read_thread,
        ContextActivities(archive).read_context,
        ForkingActivities(archive).fork_session,
        DeletionActivities(archive).delete_session,
    ]
    return SessionWorker(
        [
            worker(name_model_queue(task_queue), capacity.model_calls, models),
            worker(name_tool_queue(task_queue), capacity.tool_calls, [running.run_tool]),
            worker(task_queue, capacity.store_calls, others, workflows),
        ],
        running,
    )


def load_encodings() -> None:
    """Load every vocabulary before there is work: within a workflow's task it would take too long.

    Raises:
        EncodingUnavailable: one cannot be loaded.
    """
    for name in ENCODINGS:
        load_encoding(name)


def make_workflow_sandbox() -> SandboxedWorkflowRunner:
    """Make the sandbox that workflow code runs in, here and wherever histories are replayed."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH)
    return SandboxedWorkflowRunner(restrictions=restrictions)


def _tolerant_client(client: Client) -> Client:
    """The same client, with a data converter that no payload makes fail."""
    config = client.config()
    config["data_converter"] = make_tolerant(client.data_converter)
    return Client(**config)
