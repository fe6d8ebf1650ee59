"""Every workflow and activity of a worker, on the task queues that they are polled from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, get_args

import httpx
from temporalio.client import Client
from temporalio.worker import Plugin, Worker, WorkerDeploymentConfig, WorkerTuner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from clew.agents import Agent
from clew_activities.archive import Store
from clew_activities.checkpoints import Keys
from clew_activities.heartbeats import SHOWN_SECONDS
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels
from clew_activities.providers import Providers
from clew_activities.telemetry.interceptor import TelemetryInterceptor
from clew_activities.tools.mcp.settings import McpSettings
from clew_activities.tools.mcp.tools import McpTools
from clew_activities.tools.registry import Registry, Tools, make_registry
from clew_activities.tools.run_tool import ToolActivities
from clew_activities.webhooks import NO_WEBHOOKS, WebhookSettings
from clew_activities.worker.environment import GRACE, RATE_LIMITS, Capacity
from clew_activities.worker.parts import NO_LIMITS, Parts, make_parts
from clew_workflows.contract.hooks import Hook
from clew_workflows.contract.names import name_caller_queue, name_model_queue, name_provider_queue, name_tool_queue
from clew_workflows.encryption import is_encrypting
from clew_workflows.host import services
from clew_workflows.host.agent_session import AgentSession
from clew_workflows.host.payload_converter import make_tolerant
from clew_workflows.host.runtime import LOCAL_CONTEXTS
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.temporal_faults.deadlock_timeout import wait_for_activations
from clew_workflows.temporal_faults.private_parts import check_private_parts
from clew_workflows.temporal_faults.query_ahead import QueryGuard
from clew_workflows.temporal_faults.short_activations import THREADS, WorkflowExecutor
from clew_workflows.temporal_faults.stuck_workflows import StuckWorkflows

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

Work = Literal["sessions", "models", "tools"]
"""What a worker can serve apart: sessions with the calls of other workflows, model calls, tool calls."""
ALL_WORK: tuple[Work, ...] = get_args(Work)

WORKFLOWS = (AgentSession, *services.WORKFLOWS)
DEFAULT_THRESHOLDS = RolloverThresholds()
DEFAULT_CAPACITY = Capacity()

# Pure and deterministic modules, which the sandbox need not import again for each of a team's workflows.
PASSED_THROUGH = ("annotated_types", "clew", "clew_workflows", "pydantic", "pydantic_core", "rfc8785", "tiktoken")


class SessionWorker:
    """Temporal workers that start and stop together, one for each task queue: `async with` runs them.

    Attributes:
        registry: The tools and the agents that they have.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        registry: Registry,
        tools: ToolActivities,
        mcp_tools: McpTools,
        executor: WorkflowExecutor | None = None,
    ) -> None:
        self.registry = registry
        self._workers = workers
        self._tools = tools
        self._mcp_tools = mcp_tools
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
        self._tools.close()
        await self._mcp_tools.close()
        for failure in stopped:
            if failure is not None:
                raise failure


def make_worker(
    client: Client,
    *,
    task_queue: str,
    providers: Providers,
    tools: Tools,
    agents: Sequence[Agent] = (),
    hooks: Iterable[Hook] = (),
    http: httpx.AsyncClient,
    store: Store,
    keys: Keys | None = None,
    thresholds: RolloverThresholds = DEFAULT_THRESHOLDS,
    capacity: Capacity = DEFAULT_CAPACITY,
    grace: timedelta = GRACE,
    workflows: Sequence[type] = WORKFLOWS,
    mcp: McpSettings | None = None,
    max_calls_per_second: float | None = None,
    serves: Collection[Work] = ALL_WORK,
    deployment: WorkerDeploymentConfig | None = None,
    rate_limits: Mapping[str, float] = NO_LIMITS,
    own_models: OwnModels = NO_OWN_MODELS,
    webhooks: WebhookSettings = NO_WEBHOOKS,
) -> SessionWorker:
    """Make a worker for sessions, or for a part of their work.

    Args:
        client: Connected to the namespace that is served.
        task_queue: The sessions' task queue. Model calls and tool calls have task queues with names made from it.
        providers: The model providers.
        tools: Every tool by its name.
        agents: Every agent. The worker has their tools, too.
        hooks: Every hook. All workers of a task queue must have the same.
        http: The HTTP client of all model calls.
        store: Where sessions are archived.
        keys: Keys that sign and verify checkpoint tokens; without them checkpoints are refused.
        thresholds: When a session rolls over, that is, continues as new.
        capacity: How many activities run at the same time.
        grace: Time that running activities have to finish at a shutdown.
        workflows: The session and the services. All workers of a task queue must have the same.
        mcp: The MCP servers whose tools sessions can have.
        max_calls_per_second: The most tool calls that all workers of the task queue together begin in a second.
        serves: What the worker serves. Sessions need workers for all of it on their task queue. `tools` alone serves
            the tools that name this task queue, too.
        deployment: The worker's version, with workflows pinned by default; None: it has none.
        rate_limits: The most model calls that all workers of the task queue together begin in a second, by provider.
            All workers for sessions and for model calls must have the same.
        own_models: The sizes and the prices of the team's own models.
        webhooks: The webhooks of all sessions, the secrets of webhooks, and where they are sent to.

    Raises:
        AgentsUnusable: Two agents, or two tools, have one name, or an agent names a tool that is not there.
        EncodingUnavailable: A vocabulary cannot be loaded. All workers must count tokens alike.
        UnsupportedTemporal: The SDK lacks a private part that Clew needs.
        ValueError: A rate limit names a provider that the worker does not have.
    """
    direct_calls = capacity.direct_calls if {"sessions", "models"} <= set(serves) else 0
    parts = make_parts(
        client.namespace,
        providers=providers,
        registry=make_registry(tools, agents, hooks, mcp_servers=mcp.servers if mcp else ()),
        http=http,
        store=store,
        keys=keys or Keys(),
        thresholds=thresholds,
        mcp=mcp or McpSettings(),
        encrypts=is_encrypting(client.data_converter),
        rate_limits=rate_limits,
        model_calls=capacity.model_calls,
        direct_calls=direct_calls,
        own_models=own_models,
        webhooks=webhooks,
    )
    serving = _make_tolerant_client(client)
    workers = make_side_workers(
        serving,
        task_queue,
        parts,
        capacity,
        grace=grace,
        max_calls_per_second=max_calls_per_second,
        serves=serves,
        deployment=deployment,
    )
    executor = None
    if "sessions" in serves:
        executor = WorkflowExecutor(THREADS, "clew-workflow")
        workers.append(
            _make_queue_worker(
                serving,
                task_queue,
                parts.session_activities,
                grace=grace,
                slots=capacity.store_calls + direct_calls,
                workflows=workflows,
                executor=executor,
                deployment=deployment,
            )
        )
    return SessionWorker(workers, parts.registry, parts.tools, parts.mcp_tools, executor)


def make_side_workers(
    client: Client,
    task_queue: str,
    parts: Parts,
    capacity: Capacity,
    *,
    grace: timedelta = GRACE,
    max_calls_per_second: float | None = None,
    plugins: Sequence[Plugin] = (),
    serves: Collection[Work] = ALL_WORK,
    deployment: WorkerDeploymentConfig | None = None,
) -> list[Worker]:
    """Make the workers of the task queues beside the sessions' own: those of model calls, tool calls and callers.

    The queue of each provider is polled, also if its rate is not limited: sessions that do not know yet that a limit
    was removed still use it.

    Raises:
        ValueError: A rate limit names a provider that the worker does not have.
    """
    workers: list[Worker] = []
    if "models" in serves:
        if unknown := parts.rate_limits.keys() - set(parts.providers):
            known = ", ".join(parts.providers) or "none"
            raise ValueError(f"{RATE_LIMITS} names {min(unknown)!r}, which is no provider of this worker ({known})")
        LOCAL_CONTEXTS.is_open = True
        shared = name_model_queue(task_queue)
        queues = {name_provider_queue(task_queue, name): parts.rate_limits.get(name) for name in parts.providers}
        workers += [
            _make_queue_worker(
                client,
                queue,
                parts.model_activities if queue == shared else parts.provider_activities,
                grace=grace,
                slots=capacity.model_calls,
                max_per_second=rate,
                plugins=plugins,
                deployment=deployment,
            )
            for queue, rate in {shared: None, **queues}.items()
        ]
    if "tools" in serves:
        workers.append(
            _make_queue_worker(
                client,
                name_tool_queue(task_queue),
                parts.tool_activities,
                grace=grace,
                slots=capacity.tool_calls,
                max_per_second=max_calls_per_second,
                plugins=plugins,
                deployment=deployment,
            )
        )
    if "sessions" in serves:
        workers.append(
            _make_queue_worker(
                client,
                name_caller_queue(task_queue),
                parts.caller_activities,
                grace=grace,
                slots=capacity.caller_calls,
                plugins=plugins,
                deployment=deployment,
            )
        )
    return workers


def make_workflow_sandbox() -> SandboxedWorkflowRunner:
    """Make the sandbox of a team's own workflows, in which they can import `clew`. Sessions need none."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    return SandboxedWorkflowRunner(restrictions=restrictions)


def _make_queue_worker(
    client: Client,
    queue: str,
    activities: Sequence[Callable[..., Any]],
    *,
    grace: timedelta,
    slots: int,
    workflows: Sequence[type] = (),
    executor: WorkflowExecutor | None = None,
    max_per_second: float | None = None,
    plugins: Sequence[Plugin] = (),
    deployment: WorkerDeploymentConfig | None = None,
) -> Worker:
    """Make the Temporal worker of one task queue."""
    guard = QueryGuard()
    worker = Worker(
        client,
        task_queue=queue,
        workflows=workflows,
        activities=activities,
        tuner=WorkerTuner.create_fixed(workflow_slots=WORKFLOW_TASKS, activity_slots=slots),
        max_concurrent_workflow_task_polls=WORKFLOW_TASKS,
        workflow_task_executor=executor,
        unsandboxed_workflow_runner=guard,
        graceful_shutdown_timeout=grace,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        max_task_queue_activities_per_second=max_per_second,
        plugins=plugins,
        interceptors=[TelemetryInterceptor()],
        deployment_config=deployment,
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


def _make_tolerant_client(client: Client) -> Client:
    """Copy the client, with a data converter that accepts every payload: validation refuses it with a reason."""
    config = client.config()
    config["data_converter"] = make_tolerant(client.data_converter)
    return Client(**config)
