"""A worker's settings: one value, which its environment variables are read into once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Literal, get_args

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from clew.agents import Agent
from clew.session.live.channel import list_secrets, read_address
from clew_activities.archive import Store, open_store
from clew_activities.checkpoint_signing import Keys, read_keys
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels, read_own_models
from clew_activities.providers import Providers, ProvidersUnusable, load_providers
from clew_activities.providers.provider_errors import UnknownModel
from clew_activities.tools.mcp.mcp_settings import McpSettings, read_mcp_settings
from clew_activities.tools.registry import Tools, load_agents, load_tools
from clew_activities.tools.run_hooks import load_hooks
from clew_activities.user_modules import import_extensions
from clew_activities.webhook_sending import NO_WEBHOOKS, WebhookSettings, read_webhook_settings
from clew_workflows.contract.extras import ExtraMissing
from clew_workflows.contract.hooks import Hook
from clew_workflows.contract.names import MODEL_NAME, TASK_QUEUE
from clew_workflows.host import services
from clew_workflows.host.agent_session import AgentSession
from clew_workflows.protocol import RolloverThresholds

Work = Literal["sessions", "models", "tools"]
"""What a worker can serve apart: sessions with the calls of other workflows, model calls, tool calls."""
ALL_WORK: tuple[Work, ...] = get_args(Work)
WORKFLOWS = (AgentSession, *services.WORKFLOWS)

# The server's rules; names that begin with __ are its own.
_DEPLOYMENT = re.compile(r"(?!__)[^\s.:]{1,200}")
_BUILD_ID = re.compile(r"(?!__)\S{1,200}")

GRACE = timedelta(seconds=20)
"""Time that running activities have to finish at a shutdown by default; then another worker retries them."""
MAX_GRACE_SECONDS = 86_400
"""Largest value of `CLEW_GRACE_SECONDS`."""
MAX_CALLS = 100_000
"""Largest value of the variables of `Capacity`."""
RATE_LIMITS = "CLEW_RATE_LIMITS"
MIN_RATE = 0.001
MAX_RATE = 100_000.0
"""Least and largest rate, in calls a second."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many activities of each kind a worker runs at the same time. Further ones wait on the server.

    Attributes:
        model_calls: Model calls. Each takes a connection and the memory of its context.
        tool_calls: Tool calls. Each call of a sync tool takes a thread.
        store_calls: Activities that prepare, archive and read sessions. Each takes a few megabytes at most.
        caller_calls: Calls of other workflows (`clew.workflow`). Each waits for a request most of the time.
    """

    model_calls: int = 1000
    tool_calls: int = 500
    store_calls: int = 100
    caller_calls: int = 1000

    @property
    def direct_calls(self) -> int:
        """The most model calls of the sessions' own task queue."""
        return self.model_calls // 2


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """All that a worker is made from. `read_settings` reads it from the environment.

    Attributes:
        providers: The model providers, and the redaction of every secret that the worker has.
        store: Where sessions are archived.
        task_queue: The sessions' task queue. Model calls and tool calls have task queues with names made from it.
        serves: What the worker serves. Sessions need workers for all of it on their task queue. `tools` alone serves
            the tools that name this task queue, too.
        tools: Every tool by its name, without those that agents bring.
        agents: Every agent. The worker has their tools, too.
        hooks: Every hook. All workers of a task queue must have the same.
        keys: Keys that sign and verify checkpoint tokens; without them checkpoints are refused.
        thresholds: When a session rolls over, that is, continues as new.
        capacity: How many activities run at the same time.
        grace: Time that running activities have to finish at a shutdown.
        mcp: The MCP servers whose tools sessions can have.
        max_calls_per_second: The most tool calls that all workers of the task queue together begin in a second.
        rate_limits: The most model calls that all workers of the task queue together begin in a second, by provider.
            All workers for sessions and for model calls must have the same.
        deployment: The worker's version, with workflows pinned by default; None: it has none.
        own_models: The sizes and the prices of the team's own models.
        webhooks: The webhooks of all sessions, the secrets of webhooks, and where they are sent to.
        live: The address of the server over which viewers read what calls say; None: they read heartbeats.
        workflows: The session and the services. All workers of a task queue must have the same.
    """

    providers: Providers
    store: Store
    task_queue: str = TASK_QUEUE
    serves: Collection[Work] = ALL_WORK
    tools: Tools = field(default_factory=dict)
    agents: Sequence[Agent] = ()
    hooks: Sequence[Hook] = ()
    keys: Keys = field(default_factory=Keys)
    thresholds: RolloverThresholds = field(default_factory=RolloverThresholds)
    capacity: Capacity = field(default_factory=Capacity)
    grace: timedelta = GRACE
    mcp: McpSettings = field(default_factory=McpSettings)
    max_calls_per_second: float | None = None
    rate_limits: Mapping[str, float] = field(default_factory=dict)
    deployment: WorkerDeploymentConfig | None = None
    own_models: OwnModels = NO_OWN_MODELS
    webhooks: WebhookSettings = NO_WEBHOOKS
    live: str | None = field(default=None, repr=False)
    workflows: Sequence[type] = WORKFLOWS

    @property
    def direct_calls(self) -> int:
        """The most model calls of the sessions' own task queue. Only a worker for both makes some there."""
        return self.capacity.direct_calls if {"sessions", "models"} <= set(self.serves) else 0


def read_settings(environ: Mapping[str, str]) -> WorkerSettings:
    """Read the variables and import the modules that they name.

    Raises:
        AgentsUnusable: An agents module cannot be used.
        ExtraMissing: A variable asks for what an extra brings that is not installed.
        HooksUnusable: A hooks module cannot be used.
        InvalidInput: A file of models or prices cannot be used.
        ValueError: A variable's value cannot be used, or an extension cannot be imported.
        ProvidersUnusable: A providers module cannot be used.
        ToolsUnusable: A tools module cannot be used.
    """
    import_extensions(environ)
    mcp, webhooks, live = read_mcp_settings(environ), read_webhook_settings(environ), read_address(environ)
    secrets = (*mcp.secrets, *webhooks.all_secrets, *list_secrets(live))
    return WorkerSettings(
        providers=load_providers(environ, secrets),
        tools=load_tools(split_names(environ.get("CLEW_TOOLS", ""))),
        agents=load_agents(split_names(environ.get("CLEW_AGENTS", ""))),
        hooks=load_hooks(split_names(environ.get("CLEW_HOOKS", ""))),
        store=open_store(environ),
        keys=read_keys(environ),
        thresholds=read_thresholds(environ),
        capacity=read_capacity(environ),
        mcp=mcp,
        grace=read_grace(environ),
        deployment=read_deployment(environ),
        rate_limits=read_rate_limits(environ),
        own_models=read_own_models(environ),
        webhooks=webhooks,
        live=live,
    )


def check_model(environ: Mapping[str, str], model: str) -> str | None:
    """Return why a worker with these variables cannot call a model, named `provider:name`; None if it can try."""
    try:
        providers = load_providers(environ)
        if not MODEL_NAME.matches(model):
            known = ", ".join(providers.names) or "no provider"
            return f"{MODEL_NAME.words}, not {model[:100]!r}; this worker has {known}"
        providers.get(model.partition(":")[0])
    except (ExtraMissing, ProvidersUnusable, UnknownModel) as error:
        return str(error)
    return None


def split_names(text: str) -> Iterable[str]:
    """Split a list of names at its commas, without empty names."""
    return filter(None, map(str.strip, text.split(",")))


def read_thresholds(environ: Mapping[str, str]) -> RolloverThresholds:
    """Read `CLEW_ROLLOVER_EVENTS`, `_BYTES`, `_UPDATES` and `_SIGNALS`: when a session rolls over.

    Raises:
        ValueError: A value is not a number, or the server's limits do not allow it.
    """
    variables = {name: f"CLEW_ROLLOVER_{name.upper()}" for name in RolloverThresholds.model_fields}
    return RolloverThresholds.model_validate(
        {name: environ[variable] for name, variable in variables.items() if variable in environ}
    )


def read_capacity(environ: Mapping[str, str]) -> Capacity:
    """Read `CLEW_MODEL_CALLS`, `CLEW_TOOL_CALLS`, `CLEW_STORE_CALLS` and `CLEW_CALLER_CALLS`.

    Raises:
        ValueError: A value is not a number from 1 to `MAX_CALLS`.
    """
    numbers = {
        each.name: _read_number(environ, f"CLEW_{each.name.upper()}", 1, MAX_CALLS) for each in fields(Capacity)
    }
    return Capacity(**{name: number for name, number in numbers.items() if number is not None})


def read_grace(environ: Mapping[str, str]) -> timedelta:
    """Read `CLEW_GRACE_SECONDS`: the time that running activities have to finish at a shutdown.

    Raises:
        ValueError: The value is not a number from 0 to `MAX_GRACE_SECONDS`.
    """
    seconds = _read_number(environ, "CLEW_GRACE_SECONDS", 0, MAX_GRACE_SECONDS)
    return GRACE if seconds is None else timedelta(seconds=seconds)


def _read_number(environ: Mapping[str, str], variable: str, least: int, most: int) -> int | None:
    text = environ.get(variable)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most):
        raise ValueError(f"{variable} must be a number from {least} to {most}, not {text[:50]!r}")
    return int(text[:9])


def read_rate_limits(environ: Mapping[str, str]) -> Mapping[str, float]:
    """Read `CLEW_RATE_LIMITS`: the most model calls in a second of all workers of a task queue, by provider.

    The server enforces them.

    Raises:
        ValueError: The value is not a list of providers with their rates, or names a provider twice.
    """
    limits: dict[str, float] = {}
    for part in split_names(environ.get(RATE_LIMITS, "")):
        provider, _, number = map(str.strip, part.partition("="))
        rate = parse_rate(number)
        if not provider or rate is None:
            raise ValueError(
                f"{RATE_LIMITS} must be a list of PROVIDER=NUMBER, as in openai=50,anthropic=20, with numbers from "
                f"{MIN_RATE} to {MAX_RATE:.0f}, not {part[:50]!r}"
            )
        if provider in limits:
            raise ValueError(f"{RATE_LIMITS} names {provider[:50]!r} twice")
        limits[provider] = rate
    return limits


def parse_rate(text: str) -> float | None:
    """Parse a rate; None: it is not a number from `MIN_RATE` to `MAX_RATE`."""
    try:
        rate = float(text)
    except ValueError:
        return None
    # Temporal takes 0 for no limit.
    return rate if MIN_RATE <= rate <= MAX_RATE else None


def read_deployment(environ: Mapping[str, str]) -> WorkerDeploymentConfig | None:
    """Read the worker's version: `TEMPORAL_DEPLOYMENT_NAME` and `TEMPORAL_WORKER_BUILD_ID`.

    Workflows stay on it until they continue as new. Temporal's Worker Controller for Kubernetes sets these variables.

    Raises:
        ValueError: Only one of them is set, or the server takes no such name.
    """
    name, build_id = environ.get("TEMPORAL_DEPLOYMENT_NAME", ""), environ.get("TEMPORAL_WORKER_BUILD_ID", "")
    if not name and not build_id:
        return None
    if not (name and build_id):
        raise ValueError("TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID make a version together: set both")
    if not _DEPLOYMENT.fullmatch(name):
        raise ValueError(f"TEMPORAL_DEPLOYMENT_NAME must be 1 to 200 characters without . and :, not {name[:50]!r}")
    if not _BUILD_ID.fullmatch(build_id):
        raise ValueError(f"TEMPORAL_WORKER_BUILD_ID must be 1 to 200 characters, not {build_id[:50]!r}")
    version = WorkerDeploymentVersion(deployment_name=name, build_id=build_id)
    return WorkerDeploymentConfig(
        version=version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )
