"""What a worker's environment variables say, read once at its start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clew_activities.archive import Store, open_store
from clew_activities.checkpoint_tokens import Keys, read_keys
from clew_activities.providers import Providers, load_providers
from clew_activities.tools import Tools, load_tools
from clew_activities.worker.capacity import Capacity, read_capacity
from clew_workflows.protocol import Thresholds


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """All that a worker is configured with.

    Attributes:
        providers: The model providers, and the redaction of every secret that the worker has.
        tools: Every tool by its name.
        store: Where sessions are archived.
        keys: What checkpoint tokens are signed and verified with.
        thresholds: When a session goes on in a new run of its workflow.
        capacity: How many activities run at once.
    """

    providers: Providers
    tools: Tools
    store: Store
    keys: Keys
    thresholds: Thresholds
    capacity: Capacity


def read_environment(environ: Mapping[str, str], tools: str) -> WorkerEnvironment:
    """Read the variables and import the modules that they name.

    Args:
        environ: The environment variables.
        tools: Modules that define tools, separated by commas: `CLEW_TOOLS`, unless the command line says otherwise.

    Raises:
        ValueError: a variable's value cannot be used.
        ProvidersUnusable: a providers module cannot be used.
        ToolsUnusable: a tools module cannot be used.
    """
    return WorkerEnvironment(
        providers=load_providers(environ),
        tools=load_tools(split_names(tools)),
        store=open_store(environ),
        keys=read_keys(environ),
        thresholds=read_thresholds(environ),
        capacity=read_capacity(environ),
    )


def split_names(text: str) -> Iterable[str]:
    """The names in a list that is separated by commas, without the empty ones."""
    return filter(None, map(str.strip, text.split(",")))


def read_thresholds(environ: Mapping[str, str]) -> Thresholds:
    """When a session goes on in a new run of its workflow: `CLEW_ROLLOVER_EVENTS`, `_BYTES`, `_UPDATES`, `_SIGNALS`.

    Raises:
        ValueError: one of them is no number, or none that the server's limits allow.
    """
    variables = {name: f"CLEW_ROLLOVER_{name.upper()}" for name in Thresholds.model_fields}
    return Thresholds.model_validate(
        {name: environ[variable] for name, variable in variables.items() if variable in environ}
    )
