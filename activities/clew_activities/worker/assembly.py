"""A worker: every workflow and activity, on the task queues that they are polled from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import httpx
from temporalio.client import Client
from temporalio.worker import Plugin, Worker, WorkerTuner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from clew.session.live.channel import Channel
from clew_activities.archive import Archive
from clew_activities.archive.archived_sessions import ListingActivities, SearchAttributes
from clew_activities.archive.blob_store import BlobActivities, Blobs
from clew_activities.archive.deletion import DeletionActivities
from clew_activities.archive.fork_session import ForkingActivities
from clew_activities.archive.hibernation import ArchiveActivities
from clew_activities.archive.read_for_clients import ReadingActivities
from clew_activities.archive.thread_source import Threads
from clew_activities.archive.uploads import UploadActivities, Uploads
from clew_activities.callers import await_request, open_session, read_last_seq, send_message, submit_input
from clew_activities.checkpoint_signing import CheckpointActivities
from clew_activities.heartbeats import SHOWN_SECONDS
from clew_activities.live_writer import LiveWriter
from clew_activities.model.call_model import CallSlots, ModelActivities
from clew_activities.model.load_media import MediaLoader
from clew_activities.model.model_table import load_prices
from clew_activities.model.prepare import PrepareActivities
from clew_activities.model.summarize import SummaryActivities
from clew_activities.telemetry.interceptor import TelemetryInterceptor
from clew_activities.tools.mcp.mcp_tools import McpTools
from clew_activities.tools.registry import Deployment, Registry, make_registry
from clew_activities.tools.run_hooks import HookActivities
from clew_activities.tools.run_tool import ToolActivities
from clew_activities.tools.stored_results import Results
from clew_activities.webhook_sending import WebhookActivities
from clew_activities.worker.environment import RATE_LIMITS, WorkerSettings
from clew_workflows.contract.names import name_caller_queue, name_model_queue, name_provider_queue, name_tool_queue
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.encryption import is_encrypting
from clew_workflows.host.payload_converter import make_tolerant
from clew_workflows.host.runtime import LOCAL_CONTEXTS
from clew_workflows.protocol import Prepared
from clew_workflows.temporal_faults.deadlock_timeout import wait_for_activations
from clew_workflows.temporal_faults.private_parts import check_private_parts
from clew_workflows.temporal_faults.query_ahead import QueryGuard
from clew_workflows.temporal_faults.short_activations import THREADS, WorkflowExecutor
from clew_workflows.temporal_faults.slow_timers import begin_task
from clew_workflows.temporal_faults.stuck_workflows import StuckWorkflows

Activity = Callable[..., Any]

STICKY_TIMEOUT = timedelta(seconds=2)
"""Time that a query of a session waits for the worker that has it cached, before another worker answers it."""

WORKFLOW_TASKS = 8
"""Most workflow tasks that a worker has at the same time, and most polls for them.

They share one processor. A replay of a full history takes a quarter of a second, a task with 5 000 signals half a
second or more, and the server takes a task back after 10 seconds: of many such at once none would end in time, and
all would begin again.
"""

STUCK_SECONDS = 20.0
"""Seconds after which the worker gives a session up that the SDK cannot remove from its cache."""

HEARTBEAT_THROTTLE = timedelta(seconds=SHOWN_SECONDS)
"""The SDK holds back heartbeats that follow another one within this time. Activities choose a slower pace."""

# Pure and deterministic modules, which the sandbox need not import again for each of a team's workflows.
PASSED_THROUGH = ("annotated_types", "clew", "clew_workflows", "pydantic", "pydantic_core", "rfc8785", "tiktoken")


@dataclass(frozen=True, kw_only=True)
class Activities:
    """The activities of a worker, by the task queue that they are polled from.

    Attributes:
        registry: The worker's tools and agents.
        running: Runs the tools. It is closed when the worker has stopped.
        mcp_tools: The tools of MCP servers. They are closed when the worker has stopped.
        live: Writes what calls say, for their viewers. It is closed when the worker has stopped.
        sessions: Those of the sessions' own task queue.
        models: Those of the task queue of model calls.
        providers: Those of the task queues of limited providers.
        tools: Those of the task queue of tool calls.
        callers: Those of the task queue of other workflows' calls, and of webhooks.
    """

    registry: Registry
    running: ToolActivities
    mcp_tools: McpTools
    live: LiveWriter
    sessions: Sequence[Activity]
    models: Sequence[Activity]
    providers: Sequence[Activity]
    tools: Sequence[Activity]
    callers: Sequence[Activity]


class SessionWorker:
    """Temporal workers that start and stop together, one for each task queue: `async with` runs them.

    Attributes:
        registry: The tools and the agents that they have.
    """

    def __init__(
        self, workers: Sequence[Worker], activities: Activities, executor: WorkflowExecutor | None = None
    ) -> None:
        self.registry = activities.registry
        self._workers = workers
        self._activities = activities
        self._executor = executor
        self._stuck = StuckWorkflows(workers)
        self._is_stopping = False

    def stop_serving(self) -> None:
        """Note that the workers are about to stop, which `check` then says."""
        self._is_stopping = True

    async def check(self) -> str | None:
        """Check that all workers poll; returns why not."""
        if self._is_stopping:
            return "the worker is stopping"
        if stuck := self._stuck.count():
            return f"{stuck} sessions are stuck in the cache"
        stopped = [worker.task_queue for worker in self._workers if not worker.is_running]
        return f"no poller of {', '.join(stopped)}" if stopped else None

    async def wait_for_stuck(self) -> int:
        """Wait until sessions have been stuck in the cache for `STUCK_SECONDS`; returns how many.

        They keep slots of workflow tasks until the process ends.
        """
        since: float | None = None
        while True:
            stuck, now = self._stuck.count(), time.monotonic()
            since = (since or now) if stuck else None
            if since is not None and now - since >= STUCK_SECONDS:
                return stuck
            await asyncio.sleep(1)

    async def __aenter__(self) -> Self:
        """Start all workers. If one fails fatally, the body is cancelled and the error is raised."""
        self._activities.live.serve_sessions()
        for worker in self._workers:
            await worker.__aenter__()
        # Not before: a start that fails has no end.
        self._stuck.watch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all workers at the same time, so that they share one grace period."""
        stopped = await asyncio.gather(
            *(worker.__aexit__(kind, error, traceback) for worker in self._workers), return_exceptions=True
        )
        self._stuck.end()
        if self._executor:
            self._executor.shutdown(wait=False)
        self._activities.running.close()
        await self._activities.mcp_tools.close()
        await self._activities.live.close()
        for failure in stopped:
            if failure is not None:
                raise failure


def make_worker(client: Client, settings: WorkerSettings, http: httpx.AsyncClient) -> SessionWorker:
    """Make a worker for sessions, or for a part of their work.

    Args:
        client: Connected to the namespace that is served.
        settings: What the worker is made from.
        http: The HTTP client of all model calls.

    Raises:
        AgentsUnusable: Two agents, or two tools, have one name, or an agent names a tool that is not there.
        EncodingUnavailable: A vocabulary cannot be loaded. All workers must count tokens alike.
        UnsupportedTemporal: The SDK lacks a private part that Clew needs.
        ValueError: A rate limit names a provider that the worker does not have.
    """
    activities = make_activities(client, settings, http, direct_calls=settings.direct_calls)
    # With a data converter that accepts every payload: validation refuses it with a reason.
    config = client.config()
    config["data_converter"] = make_tolerant(client.data_converter)
    serving = Client(**config)
    workers = make_side_workers(serving, settings, activities)
    executor = None
    if "sessions" in settings.serves:
        executor = WorkflowExecutor(THREADS, "clew-workflow")
        slots = settings.capacity.store_calls + settings.direct_calls
        workers.append(
            _make_queue_worker(
                serving,
                settings.task_queue,
                activities.sessions,
                settings,
                slots,
                workflows=settings.workflows,
                workflow_task_executor=executor,
            )
        )
    return SessionWorker(workers, activities, executor)


def make_activities(
    client: Client, settings: WorkerSettings, http: httpx.AsyncClient, *, direct_calls: int
) -> Activities:
    """Make all activities. Of the model calls `direct_calls` at the same time are of the sessions' own task queue.

    If the client encrypts, labels and search attributes hold no texts of conversations.

    Raises:
        AgentsUnusable: Two agents, or two tools, have one name, or an agent names a tool that is not there.
        EncodingUnavailable: A vocabulary cannot be loaded. All workers must count tokens alike.
    """
    registry = make_registry(settings.tools, settings.agents, settings.hooks, mcp_servers=settings.mcp.servers)
    registry = replace(registry, deployment=settings.webhooks.extend(registry.deployment))
    load_encodings()
    load_prices()
    providers, own_models = settings.providers, settings.own_models
    archive = Archive(settings.store, client.namespace)
    blobs, threads, attributes = Blobs(archive), Threads(archive), SearchAttributes()
    mcp_tools = McpTools(settings.mcp, providers.redaction)
    live = LiveWriter(Channel.of(client, settings.live) if settings.live else None)
    hooks, limited = tuple(registry.hooks), tuple(sorted(settings.rate_limits))
    preparing = PrepareActivities(
        providers,
        registry,
        archive,
        settings.thresholds,
        mcp_tools,
        worker=Prepared(
            shows_texts=not is_encrypting(client.data_converter),
            hooks=hooks,
            limited=limited,
            calls_models=direct_calls > 0,
            webhooks=settings.webhooks.webhooks,
        ),
        search_attributes=attributes,
        own_models=own_models,
        webhooks=settings.webhooks,
    )
    models = ModelActivities(
        providers,
        http,
        Deployment(registry.deployment, mcp_tools),
        hooks,
        limited,
        media=MediaLoader(blobs),
        own_models=own_models,
        blobs=blobs,
        live=live,
    )
    checkpoints = CheckpointActivities(
        settings.keys, registry, archive, client.namespace, mcp_tools, own_models=own_models, blobs=blobs
    )
    archiving, reading = ArchiveActivities(archive, attributes), ReadingActivities(archive)
    storing, uploading = BlobActivities(blobs), UploadActivities(Uploads(blobs))
    running = ToolActivities(registry.tools, Results(archive, threads), mcp_tools=mcp_tools, blobs=blobs, live=live)
    checking = HookActivities(registry.hooks, running.threads, providers.redaction, blobs)
    summarize = SummaryActivities(providers, http, archive, threads, own_models).summarize
    slots = CallSlots(models, settings.capacity.model_calls, direct_calls)
    return Activities(
        registry=registry,
        running=running,
        mcp_tools=mcp_tools,
        live=live,
        sessions=[
            preparing.prepare,
            preparing.describe_model,
            preparing.list_agents,
            begin_task,
            archiving.archive,
            archiving.thaw,
            archiving.recall,
            checkpoints.sign_checkpoint,
            checkpoints.open_checkpoint,
            checkpoints.put_context,
            reading.read_thread,
            reading.read_context,
            ForkingActivities(archive).fork_session,
            DeletionActivities(archive, live).delete_session,
            ListingActivities(archive).list_sessions,
            storing.put_blob,
            storing.end_upload,
            storing.get_blob,
            storing.check_blobs,
            uploading.start_upload,
            uploading.finish_upload,
            slots.call_directly,
        ],
        models=[slots.call_from_queue, summarize],
        providers=[models.call_model, summarize],
        tools=[running.run_tool, checking.run_hooks],
        callers=[
            open_session,
            send_message,
            await_request,
            submit_input,
            read_last_seq,
            WebhookActivities(settings.webhooks).send_notice,
        ],
    )


def make_side_workers(
    client: Client, settings: WorkerSettings, activities: Activities, plugins: Sequence[Plugin] = ()
) -> list[Worker]:
    """Make the workers of the task queues beside the sessions' own: those of model calls, tool calls and callers.

    The queue of each provider is polled, also if its rate is not limited: sessions that do not know yet that a limit
    was removed still use it.

    Raises:
        ValueError: A rate limit names a provider that the worker does not have.
    """
    capacity, limits, providers = settings.capacity, settings.rate_limits, settings.providers.names
    queues: list[tuple[str, Sequence[Activity], int, float | None]] = []
    if "models" in settings.serves:
        if unknown := limits.keys() - set(providers):
            known = ", ".join(providers) or "none"
            raise ValueError(f"{RATE_LIMITS} names {min(unknown)!r}, which is no provider of this worker ({known})")
        LOCAL_CONTEXTS.is_open = True
        queues.append((name_model_queue(settings.task_queue), activities.models, capacity.model_calls, None))
        for name in providers:
            queue = name_provider_queue(settings.task_queue, name)
            queues.append((queue, activities.providers, capacity.model_calls, limits.get(name)))
    if "tools" in settings.serves:
        queue = name_tool_queue(settings.task_queue)
        queues.append((queue, activities.tools, capacity.tool_calls, settings.max_calls_per_second))
    if "sessions" in settings.serves:
        queues.append((name_caller_queue(settings.task_queue), activities.callers, capacity.caller_calls, None))
    return [
        _make_queue_worker(
            client, queue, served, settings, slots, plugins=plugins, max_task_queue_activities_per_second=rate
        )
        for queue, served, slots, rate in queues
    ]


def make_workflow_sandbox() -> SandboxedWorkflowRunner:
    """Make the sandbox of a team's own workflows, in which they can import `clew`. Sessions need none."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    return SandboxedWorkflowRunner(restrictions=restrictions)


def _make_queue_worker(
    client: Client,
    queue: str,
    activities: Sequence[Activity],
    settings: WorkerSettings,
    slots: int,
    **options: Any,
) -> Worker:
    """Make the Temporal worker of one task queue."""
    guard = QueryGuard()
    worker = Worker(
        client,
        task_queue=queue,
        activities=activities,
        tuner=WorkerTuner.create_fixed(workflow_slots=WORKFLOW_TASKS, activity_slots=slots),
        max_concurrent_workflow_task_polls=WORKFLOW_TASKS,
        unsandboxed_workflow_runner=guard,
        graceful_shutdown_timeout=settings.grace,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        interceptors=[TelemetryInterceptor()],
        deployment_config=settings.deployment,
        **options,
    )
    work_around_faults(worker, guard)
    return worker


def work_around_faults(worker: Worker, guard: QueryGuard) -> None:
    """Change a worker, before it starts, so that faults of the SDK do no harm.

    Raises:
        UnsupportedTemporal: The SDK lacks a private part for that.
    """
    check_private_parts(worker.client, worker)
    guard.watch(worker)
    wait_for_activations(worker)
