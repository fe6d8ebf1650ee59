"""A worker's configuration in environment variables, read once at its start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clew.agents import Agent
from clew_activities.archive import Store, open_store
from clew_activities.checkpoint_tokens import Keys, read_keys
from clew_activities.mcp.settings import McpSettings, read_mcp_settings
from clew_activities.providers import Providers, ProvidersUnusable, load_providers
from clew_activities.providers.errors import UnknownModel
from clew_activities.registry import load_agents
from clew_activities.tools import Tools, load_tools
from clew_activities.worker.capacity import Capacity, read_capacity
from clew_workflows.protocol import RolloverThresholds


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """A worker's configuration.

    Attributes:
        providers: The model providers, and the redaction of every secret that the worker has.
        tools: Every tool by its name, without those that agents bring.
        agents: Every agent.
        store: Where sessions are archived.
        keys: Keys that sign and verify checkpoint tokens.
        thresholds: When a session rolls over, that is, continues as new.
        capacity: How many activities run at the same time.
        mcp: The MCP servers whose tools sessions can have.
    """

    providers: Providers
    tools: Tools
    agents: Sequence[Agent]
    store: Store
    keys: Keys
    thresholds: RolloverThresholds
    capacity: Capacity
    mcp: McpSettings


def read_environment(environ: Mapping[str, str], tools: str, agents: str = "") -> WorkerEnvironment:
    """Read the variables and import the modules that they name.

    Args:
        environ: The environment variables.
        tools: Modules that define tools, separated by commas.
        agents: Modules that define agents, separated by commas.

    Raises:
        AgentsUnusable: An agents module cannot be used.
        ValueError: A variable's value cannot be used.
        ProvidersUnusable: A providers module cannot be used.
        ToolsUnusable: A tools module cannot be used.
    """
    mcp = read_mcp_settings(environ)
    return WorkerEnvironment(
        providers=load_providers(environ, mcp.secrets),
        tools=load_tools(split_names(tools)),
        agents=load_agents(split_names(agents)),
        store=open_store(environ),
        keys=read_keys(environ),
        thresholds=read_thresholds(environ),
        capacity=read_capacity(environ),
        mcp=mcp,
    )


def check_model(environ: Mapping[str, str], model: str) -> str | None:
    """Return why a worker with these variables cannot call a model, named `provider:name`; None if it can try."""
    provider, colon, name = model.partition(":")
    if not (provider and colon and name):
        return f"{model[:100]!r} is not PROVIDER:NAME, as in openai:gpt-4o"
    try:
        load_providers(environ).get(provider)
    except (ProvidersUnusable, UnknownModel) as error:
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
