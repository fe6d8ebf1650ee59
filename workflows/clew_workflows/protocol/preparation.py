"""Resolving a configuration against a worker's providers and tools."""

from __future__ import annotations

from clew.contract.policy import ContextPolicy
from clew.model.prices import Prices
from clew.model.tokens import EncodingName
from clew_workflows.protocol._value import Value
from clew_workflows.protocol.archive import ArchiveRef
from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.tools import ResolvedTool


class Prepare(Value):
    """Resolve a configuration against what the worker has: its providers and its registered tools.

    Attributes:
        model: `provider:model`.
        tools: The names of the tools.
        execution: The id of the workflow execution that starts. With it the worker also looks for an archive of the
            session; where there is one, the session continues from it.
        archived: The session has an archive, which its model may read from.
        clears: The session's policy clears tool results, which its model may read again.
    """

    model: str
    tools: tuple[str, ...]
    execution: str | None = None
    archived: bool = False
    clears: bool = False


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
        problem: The first tool or model that the worker does not know.
        profile: The profile of the configuration's model; None if no worker has answered.
        archive: The session's archive; None if the worker has no store.
        state: The name of the archived state that the session continues from; None for a new session.
        mismatch: Why the session cannot continue from its archive.
    """

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None
    profile: ModelProfile | None = None
    archive: ArchiveRef | None = None
    state: str | None = None
    mismatch: str | None = None
