"""Resolving a configuration against a worker's providers, tools and agents."""

from __future__ import annotations

from typing import Any

from pydantic import field_serializer

from clew.contract import SessionConfig
from clew.contract.policy import ContextPolicy
from clew.hooks import HookPoint
from clew.model.prices import Prices
from clew.model.tokens import EncodingName
from clew_workflows.protocol._value import Value
from clew_workflows.protocol.archive import ArchiveRef
from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.tools import ResolvedTool


class ResolvedAgent(Value):
    """An agent as a worker has it.

    Attributes:
        name: The name of the agent.
        version: The digest of the agent's configuration, its tools and its label.
        label: The label that the agent's author gave the version.
        config: The configuration, with the fields that the agent sets.
    """

    name: str
    version: str
    label: str | None = None
    config: SessionConfig

    @field_serializer("config")
    def _dump_config(self, config: SessionConfig) -> dict[str, Any]:
        """Dump the fields that are set: the others are not the agent's."""
        return config.model_dump(mode="json", exclude_unset=True)


class Prepare(Value):
    """Resolve a configuration against what the worker has: its providers, its registered tools and agents.

    Attributes:
        agent: The name of the agent; None: the session has none, or keeps the version that it has.
        model: `provider:model`; None: the agent's.
        fallbacks: The models that are tried while that one has an outage; None: the agent's, or none.
        tools: The names of the tools; None: the agent's.
        execution: The id of the workflow execution that starts. With it the worker also looks for an archive of the
            session; where there is one, the session continues from it.
        archived: The session has an archive, which its model may read from.
        clears: The session's policy clears tool results, which its model may read again. None: the agent's policy
            says so.
        encoding: The encoding that the tokens of the tools' schemas are counted under; None: the model's.
    """

    agent: str | None = None
    model: str | None = None
    fallbacks: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    execution: str | None = None
    archived: bool = False
    clears: bool | None = False
    encoding: EncodingName | None = None


class DescribeModel(Value):
    """Describe a model that a request names.

    Attributes:
        model: `provider:model`.
    """

    model: str


class ModelProfile(Value):
    """A worker's description of a model, with the settings it chooses where a configuration leaves them open.

    Attributes:
        model: `provider:model`.
        policy: The context policy for the model's window, complete.
        encoding: The encoding of a thread that begins with this model.
        prices: The model's list prices when the worker answered.
    """

    model: str
    policy: ContextPolicy
    encoding: EncodingName
    prices: Prices = ()


class Prepared(Value):
    """A resolved configuration, or the reason why it cannot be resolved.

    Attributes:
        tools: The tools, in the order of the configuration.
        problem: The first agent, tool or model that the worker does not know.
        agent: The agent that the configuration names; None if the worker does not know it.
        deployment: The digest of all agents and tools of the worker; None if no worker has answered.
        shows_texts: Whether labels and search attributes may hold texts of the conversation: the worker does not
            encrypt. None if no worker has answered.
        hooks: The points for which the worker has hooks; None if no worker has answered.
        limited: The providers whose rate is limited; None if no worker has answered.
        calls_models: Whether the worker makes model calls, too; None if no worker has answered.
        profile: The profile of the configuration's model; None if no worker has answered.
        archive: The session's archive; None if the worker has no store.
        state: The name of the archived state that the session continues from; None for a new session.
        interrupted: Why the session must be recovered before it can continue from its archive.
        search_attributes: The names of the search attributes of sessions that the namespace has.
    """

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None
    agent: ResolvedAgent | None = None
    deployment: str | None = None
    shows_texts: bool | None = None
    hooks: tuple[HookPoint, ...] | None = None
    limited: tuple[str, ...] | None = None
    calls_models: bool | None = None
    profile: ModelProfile | None = None
    archive: ArchiveRef | None = None
    state: str | None = None
    interrupted: str | None = None
    search_attributes: tuple[str, ...] = ()
