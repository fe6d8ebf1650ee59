"""Sessions on a team's own worker, beside its workflows and activities."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import httpx
import temporalio.worker
from temporalio.client import Client
from temporalio.common import VersioningBehavior
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig, WorkerDeploymentConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from clew.agents import Agent
from clew.session.connection import Clew
from clew.tools import ToolDefinition
from clew_activities.archive import Store, open_store
from clew_activities.providers import Providers, make_http_client
from clew_activities.telemetry.interceptor import TelemetryInterceptor
from clew_activities.tools.registry import collect_tools
from clew_activities.worker.assembly import (
    HEARTBEAT_THROTTLE,
    PASSED_THROUGH,
    STICKY_TIMEOUT,
    WORKFLOW_TASKS,
    Activities,
    SessionWorker,
    make_activities,
    make_side_workers,
    make_workflow_sandbox,
    work_around_faults,
)
from clew_activities.worker.environment import WORKFLOWS, Capacity, WorkerSettings, read_settings
from clew_workflows.contract.hooks import Hook
from clew_workflows.encryption import encrypt_payloads, read_encryption
from clew_workflows.host.payload_converter import make_shared
from clew_workflows.temporal_faults.query_ahead import QueryGuard

DEFAULT_SLOTS = 100
"""Activity slots of a worker that sets none."""


@dataclass(frozen=True, kw_only=True)
class _Serving:
    """What a worker with the plugin runs for its sessions.

    Attributes:
        client: The team's client, with a data converter for sessions.
        settings: Those of the workers of the side queues, with the version of the team's worker.
        activities: All activities.
        http: The HTTP client of the model calls.
        plugins: The client's other plugins, for the workers of the side queues.
        guard: Runs the sessions.
    """

    client: Client
    settings: WorkerSettings
    activities: Activities
    http: httpx.AsyncClient
    plugins: Sequence[temporalio.worker.Plugin]
    guard: QueryGuard


class ClewPlugin(SimplePlugin):
    """Adds sessions to a Temporal worker: their workflows and activities, and workers for model calls and tool calls.

    `Worker(client, task_queue="clew", workflows=[…], plugins=[ClewPlugin(tools=[…])])` serves sessions on the task
    queue `clew` as the command `clew worker` does. What is left out comes from the environment, as for that command.
    For a `Replayer`, the plugin adds the workflows and their sandbox.

    Model calls of its sessions take at most half of the worker's activity slots. These slots, the executors and the
    version (`deployment_config`) stay the team's. Its time for a graceful shutdown becomes at least 20 seconds, and
    its sticky queue's timeout and heartbeat intervals at most those that sessions need. Without a tuner of the team's
    it has at most 8 workflow tasks at the same time.
    """

    def __init__(
        self,
        *,
        tools: Sequence[ToolDefinition] = (),
        agents: Sequence[Agent] = (),
        hooks: Sequence[Hook] = (),
        store: str | Store | None = None,
        providers: Providers | None = None,
        capacity: Capacity | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Configure the sessions. Nothing is read or imported until a worker is made.

        Args:
            tools: Tools, beside those of the modules that `CLEW_TOOLS` names.
            agents: Agents, beside those of the modules that `CLEW_AGENTS` names.
            hooks: Hooks, beside those of the modules that `CLEW_HOOKS` names.
            store: Where sessions are archived, as in `CLEW_STORE`.
            providers: The model providers; None: those of the environment.
            capacity: How many model calls and tool calls run at the same time; None: as the environment says.
            environ: The environment variables.
        """
        super().__init__("clew.ClewPlugin", workflows=WORKFLOWS, workflow_runner=_pass_through)
        self._tools = tools
        self._agents = agents
        self._hooks = hooks
        self._store = store
        self._providers = providers
        self._capacity = capacity
        self._environ = environ
        self._serving: dict[str, _Serving] = {}

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the workflows, the activities and the settings that sessions need.

        Raises:
            AgentsUnusable: The agents cannot be used.
            EncodingUnavailable: A vocabulary cannot be loaded.
            ProvidersUnusable: A providers module cannot be used.
            ToolsUnusable: The tools cannot be used.
            ValueError: A variable's value cannot be used, or the worker's version upgrades workflows by default.
        """
        config = super().configure_worker(config)
        client = config["client"]
        config["deployment_config"] = _pin(config.get("deployment_config"))
        serving = self._serving[config["task_queue"]] = self._make_serving(client, config)
        config["client"] = serving.client
        config["activities"] = [*(config.get("activities") or ()), *serving.activities.sessions]
        config["interceptors"] = [*(config.get("interceptors") or ()), TelemetryInterceptor()]
        # Sessions opt out of the sandbox: the runner of those that do is theirs.
        config["unsandboxed_workflow_runner"] = serving.guard
        grace = max(config.get("graceful_shutdown_timeout", timedelta()), serving.settings.grace)
        config["graceful_shutdown_timeout"] = grace
        if config.get("tuner") is None:
            tasks = config.get("max_concurrent_workflow_tasks") or WORKFLOW_TASKS
            config["max_concurrent_workflow_tasks"] = min(tasks, WORKFLOW_TASKS)
        config["sticky_queue_schedule_to_start_timeout"] = min(
            config.get("sticky_queue_schedule_to_start_timeout", STICKY_TIMEOUT), STICKY_TIMEOUT
        )
        config["max_heartbeat_throttle_interval"] = min(
            config.get("max_heartbeat_throttle_interval", HEARTBEAT_THROTTLE), HEARTBEAT_THROTTLE
        )
        config["default_heartbeat_throttle_interval"] = min(
            config.get("default_heartbeat_throttle_interval", HEARTBEAT_THROTTLE), HEARTBEAT_THROTTLE
        )
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Add the workflows, their sandbox and their data converter."""
        config = super().configure_replayer(config)
        converter = config.get("data_converter", DataConverter.default)
        config["data_converter"] = make_shared(encrypt_payloads(converter, read_encryption(self._environ)))
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002
        """Run the workers of the model calls and the tool calls as long as the team's worker runs."""
        serving = self._serving.pop(worker.task_queue)
        # The SDK gives activities the client that the team made the worker with, which cannot decrypt.
        worker.client = serving.client
        work_around_faults(worker, serving.guard)
        side_workers = make_side_workers(serving.client, serving.settings, serving.activities, serving.plugins)
        async with serving.http, SessionWorker(side_workers, serving.activities):
            await next(worker)

    def _make_serving(self, client: Client, worker: WorkerConfig) -> _Serving:
        read = read_settings(self._environ)
        store = self._store or read.store
        settings = replace(
            read,
            task_queue=worker["task_queue"],
            tools=collect_tools([*read.tools.values(), *self._tools]),
            agents=[*read.agents, *self._agents],
            hooks=[*read.hooks, *self._hooks],
            store=open_store({**self._environ, "CLEW_STORE": store}) if isinstance(store, str) else store,
            providers=self._providers or read.providers,
            capacity=self._capacity or read.capacity,
            deployment=worker.get("deployment_config"),
        )
        http, own = make_http_client(), Clew(client, encryption=read_encryption(self._environ)).temporal
        direct_calls = min(settings.direct_calls, _count_slots(worker) // 2)
        activities = make_activities(own, settings, http, direct_calls=direct_calls)
        # The client's plugins have been applied to its active configuration: they are not to be applied again.
        config = own.config(active_config=True)
        others = [plugin for plugin in config["plugins"] if plugin is not self]
        plugins = [plugin for plugin in others if isinstance(plugin, temporalio.worker.Plugin)]
        config["plugins"] = []
        config["data_converter"] = make_shared(config["data_converter"])
        return _Serving(
            client=Client(**config),
            settings=settings,
            activities=activities,
            http=http,
            plugins=plugins,
            guard=QueryGuard(),
        )


def _count_slots(config: WorkerConfig) -> int:
    """Count the worker's activity slots, of which model calls may take half. A tuner's cannot be counted: 0."""
    return 0 if config.get("tuner") else config.get("max_concurrent_activities") or DEFAULT_SLOTS


def _pin(deployment: WorkerDeploymentConfig | None) -> WorkerDeploymentConfig | None:
    """Pin the workflows without a behavior of their own to the worker's version.

    A session moves by continuing as new: in the middle of a workflow run, another version cannot replay its history.
    A workflow class cannot say so itself, since the server refuses it from workers without a version.

    Raises:
        ValueError: Such workflows are upgraded.
    """
    if deployment is None or not deployment.use_worker_versioning:
        return deployment
    if deployment.default_versioning_behavior == VersioningBehavior.AUTO_UPGRADE:
        raise ValueError(
            "sessions are pinned to a worker's version: set default_versioning_behavior to PINNED, and "
            "versioning_behavior=AUTO_UPGRADE in @workflow.defn of the workflows that are to be upgraded"
        )
    return replace(deployment, default_versioning_behavior=VersioningBehavior.PINNED)


def _pass_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Let the modules of sessions pass through a team's sandbox. A runner without a sandbox stays as it is."""
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner or make_workflow_sandbox()
    return replace(runner, restrictions=runner.restrictions.with_passthrough_modules(*PASSED_THROUGH))
