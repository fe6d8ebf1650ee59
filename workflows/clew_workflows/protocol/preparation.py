"""A configuration, resolved against what a worker has."""

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

    With `look`, the id of the workflow execution that asks, also whether there is an archive of the session: it is
    then to go on from there. `archived` says that the session has one, which its model may read from, `clears` that
    its policy clears tool results, which its model may read again.
    """

    model: str
    tools: tuple[str, ...]
    look: str | None = None
    archived: bool = False
    clears: bool = False


class DescribeModel(Value):
    """Tell what is known of a model that a request names."""

    model: str


class ModelProfile(Value):
    """What a worker knows of a model, and chooses for it where a configuration leaves it open.

    Attributes:
        model: `provider:model`.
        policy: The context policy for its window, complete.
        encoding: What a thread that begins with this model is counted in.
        prices: Its list prices when the worker answered.
    """

    model: str
    policy: ContextPolicy
    encoding: EncodingName
    prices: Prices = ()


class Prepared(Value):
    """Every tool's schema as the worker resolved it, in the order asked for, or what it does not know.

    `profile` is that of the configuration's model; it is absent where no worker has answered.
    `archive` is where the session's thread is kept. `state` names what a session goes on from that was archived
    whole, `mismatch` says why it cannot go on.
    """

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None
    profile: ModelProfile | None = None
    archive: ArchiveRef | None = None
    state: str | None = None
    mismatch: str | None = None
