"""Every workflow and activity of a worker, on the task queues that they are polled from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import httpx
from temporalio.client import Client
from temporalio.worker import Plugin, Worker, WorkerTuner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from clew.agents import Agent
from clew.contract.calls import name_caller_queue
from clew_activities.archive import Archive, Store
from clew_activities.checkpoint_tokens import Keys
from clew_activities.heartbeat import INTERVAL_SECONDS
from clew_activities.mcp.settings import McpSettings
from clew_activities.mcp.tools import McpTools
from clew_activities.providers import Providers
from clew_activities.registry import Registry, make_registry
from clew_activities.run_tool import ToolActivities
from clew_activities.stored_results import Results
from clew_activities.thread_source import Threads
from clew_activities.tools import Tools
from clew_activities.worker.capacity import Capacity
from clew_activities.worker.parts import Parts, make_parts
from clew_workflows.protocol import RolloverThresholds, name_model_queue, name_tool_queue
from clew_workflows.services import SERVICES
from clew_workflows.session import AgentSession
from clew_workflows.shell.payload_converter import make_tolerant

GRACE = timedelta(seconds=20)
"""Time that running activities have to finish at a shutdown; then another worker retries them."""
STICKY_TIMEOUT = timedelta(seconds=2)
"""Time that a query of a session waits for the worker that has it cached, before another worker answers it."""

HEARTBEAT_THROTTLE = timedelta(seconds=INTERVAL_SECONDS)
"""Longest time between two heartbeats that reach the server."""

WORKFLOWS = (AgentSession, *SERVICES)
DEFAULT_THRESHOLDS = RolloverThresholds()
DEFAULT_CAPACITY = Capacity()

# Pure and deterministic modules, which the sandbox need not import again for each session.
PASSED_THROUGH = ("annotated_types", "clew", "clew_workflows", "pydantic", "pydantic_core", "rfc8785", "tiktoken")


class SessionWorker:
    """Temporal workers that start and stop together, one for each task queue: `async with` runs them.

    Attributes:
        registry: The tools and the agents that they have.
    """

    def __init__(
        self, workers: Sequence[Worker], registry: Registry, tools: ToolActivities, mcp_tools: McpTools
    ) -> None:
        self.registry = registry
        self._workers = workers
        self._tools = tools
        self._mcp_tools = mcp_tools

    async def __aenter__(self) -> Self:
        """Start all workers. If one fails fatally, the body is cancelled and the error is raised."""
        for worker in self._workers:
            await worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all workers at the same time, so that they share one grace period."""
        stopped = await asyncio.gather(
            *(worker.__aexit__(kind, error, traceback) for worker in self._workers), return_exceptions=True
        )
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
    http: httpx.AsyncClient,
    store: Store,
    keys: Keys | None = None,
    thresholds: RolloverThresholds = DEFAULT_THRESHOLDS,
    capacity: Capacity = DEFAULT_CAPACITY,
    grace: timedelta = GRACE,
    workflows: Sequence[type] = WORKFLOWS,
    mcp: McpSettings | None = None,
    max_calls_per_second: float | None = None,
) -> SessionWorker:
    """Make a worker for sessions.

    Args:
        client: Connected to the namespace that is served.
        task_queue: The sessions' task queue. Model calls and tool calls have task queues with names made from it.
        providers: The model providers.
        tools: Every tool by its name.
        agents: Every agent. The worker has their tools, too.
        http: The HTTP client of all model calls.
        store: Where sessions are archived.
        keys: Keys that sign and verify checkpoint tokens; without them checkpoints are refused.
        thresholds: When a session rolls over, that is, continues as new.
        capacity: How many activities run at the same time.
        grace: Time that running activities have to finish at a shutdown.
        workflows: The session and the services. All workers of a task queue must have the same.
        mcp: The MCP servers whose tools sessions can have.
        max_calls_per_second: The most tool calls that all workers of the task queue together begin in a second.

    Raises:
        AgentsUnusable: Two agents, or two tools, have one name.
        EncodingUnavailable: A vocabulary cannot be loaded. All workers must count tokens alike.
    """
    parts = make_parts(
        client.namespace,
        providers=providers,
        registry=make_registry(tools, agents),
        http=http,
        store=store,
        keys=keys or Keys(),
        thresholds=thresholds,
        mcp=mcp or McpSettings(),
    )
    serving = _make_tolerant_client(client)
    side_workers = make_side_workers(
        serving, task_queue, parts, capacity, grace=grace, max_calls_per_second=max_calls_per_second
    )
    session_worker = _make_queue_worker(
        serving,
        task_queue,
        parts.session_activities,
        grace=grace,
        slots=capacity.store_calls,
        workflows=workflows,
    )
    return SessionWorker([*side_workers, session_worker], parts.registry, parts.tools, parts.mcp_tools)


def make_side_workers(
    client: Client,
    task_queue: str,
    parts: Parts,
    capacity: Capacity,
    *,
    grace: timedelta = GRACE,
    max_calls_per_second: float | None = None,
    plugins: Sequence[Plugin] = (),
) -> list[Worker]:
    """Make the workers of the task queues beside the sessions' own: those of model calls, tool calls and callers."""
    return [
        _make_queue_worker(
            client,
            name_model_queue(task_queue),
            parts.model_activities,
            grace=grace,
            slots=capacity.model_calls,
            plugins=plugins,
        ),
        _make_queue_worker(
            client,
            name_tool_queue(task_queue),
            parts.tool_activities,
            grace=grace,
            slots=capacity.tool_calls,
            max_per_second=max_calls_per_second,
            plugins=plugins,
        ),
        _make_queue_worker(
            client,
            name_caller_queue(task_queue),
            parts.caller_activities,
            grace=grace,
            slots=capacity.caller_calls,
            plugins=plugins,
        ),
    ]


def make_tool_worker(
    client: Client,
    *,
    task_queue: str,
    tools: Tools,
    agents: Sequence[Agent] = (),
    store: Store,
    capacity: Capacity = DEFAULT_CAPACITY,
    grace: timedelta = GRACE,
    max_calls_per_second: float | None = None,
) -> SessionWorker:
    """Make a worker that only runs functions: those of tools with this `task_queue`, and of its sessions.

    Args:
        client: Connected to the namespace that is served.
        task_queue: The task queue that the tools name.
        tools: Every tool by its name.
        agents: Agents whose tools the worker has, too.
        store: Where large results are stored: that of the sessions.
        capacity: How many calls run at the same time.
        grace: Time that running calls have to finish at a shutdown.
        max_calls_per_second: The most calls that all workers of the task queue together begin in a second.

    Raises:
        AgentsUnusable: Two agents, or two tools, have one name.
    """
    registry = make_registry(tools, agents)
    archive = Archive(store, client.namespace)
    running = ToolActivities(registry.tools, Results(archive, Threads(archive)))
    worker = _make_queue_worker(
        _make_tolerant_client(client),
        name_tool_queue(task_queue),
        [running.run_tool],
        grace=grace,
        slots=capacity.tool_calls,
        max_per_second=max_calls_per_second,
    )
    return SessionWorker([worker], registry, running, McpTools())


def make_workflow_sandbox() -> SandboxedWorkflowRunner:
    """Make the sandbox of workflow code, for workers and for replaying histories."""
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
    max_per_second: float | None = None,
    plugins: Sequence[Plugin] = (),
) -> Worker:
    """Make the Temporal worker of one task queue."""
    return Worker(
        client,
        task_queue=queue,
        workflows=workflows,
        activities=activities,
        tuner=WorkerTuner.create_fixed(activity_slots=slots),
        workflow_runner=make_workflow_sandbox(),
        graceful_shutdown_timeout=grace,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        max_task_queue_activities_per_second=max_per_second,
        plugins=plugins,
    )


def _make_tolerant_client(client: Client) -> Client:
    """Copy the client, with a data converter that accepts every payload: validation refuses it with a reason."""
    config = client.config()
    config["data_converter"] = make_tolerant(client.data_converter)
    return Client(**config)
