"""A configuration, resolved against what a worker has."""

from __future__ import annotations

from clew.contract.policy import ContextPolicy
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


class Defaults(Value):
    """What a worker's catalog, of the `edition`, chooses for a model where the configuration leaves it open."""

    model: str
    policy: ContextPolicy
    encoding: EncodingName
    edition: int


class Prepared(Value):
    """Every tool's schema as the worker resolved it, in the order asked for, or what it does not know.

    `defaults` are absent where a worker of an earlier release has answered.
    `archive` is where the session's thread is kept. `state` names what a session goes on from that was archived
    whole, `mismatch` says why it cannot go on.
    """

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None
    defaults: Defaults | None = None
    archive: ArchiveRef | None = None
    state: str | None = None
    mismatch: str | None = None
