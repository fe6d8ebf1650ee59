"""Archiving a session's entries, and fetching them again."""

from __future__ import annotations

from clew.contract.policy import ContextPolicy
from clew.thread.layers import Layers
from clew_workflows.protocol._value import Value
from clew_workflows.protocol.packed import Packed
from clew_workflows.protocol.rollover import RolloverThresholds


class ArchiveRef(Value):
    """A session's archive.

    Attributes:
        execution: The id of the workflow execution that writes it, the same for all its workflow runs.
        family: The session family whose folder holds the segments. A fork is of its parent's family.
        root: The name of the index node that lists the segments; None before the first is written.
        upto: The seq of the newest archived entry; -1 for none.
        thresholds: The thresholds that the worker is configured with.
    """

    execution: str
    family: str
    root: str | None = None
    upto: int = -1
    thresholds: RolloverThresholds = RolloverThresholds()


class Archiving(Value):
    """Write a session's entries and its state to the archive.

    Attributes:
        archive: The archive as it is before.
        closed: The session ends in this execution, or hibernates.
    """

    archive: ArchiveRef
    closed: bool = False


class WrittenArchive(Value):
    """The archive after a write.

    Attributes:
        archive: The archive.
        search_attributes: The names of the search attributes of sessions that the namespace has.
    """

    archive: ArchiveRef
    search_attributes: tuple[str, ...] = ()


class Thaw(Value):
    """Fetch the state that an archived session continues from.

    Attributes:
        archive: The archive.
        state: The name of the archived state.
    """

    archive: ArchiveRef
    state: str


class Thawed(Packed):
    """The state that an archived session continues from, compressed.

    Attributes:
        version: The version of its format.
        archive: The archive as it is now.
    """

    version: int = 1
    archive: ArchiveRef | None = None


class Recall(Value):
    """Fetch the archived part of a lane that contexts need.

    Attributes:
        archive: The archive.
        context_ref: The lane.
        policies: The policies of the contexts.
        before: The session holds the lane's messages from this seq on.
        layers: The lane's layers as the session holds them; None: read them from the archive. The session may hold
            operations that are not archived yet, and older layers that an `expand` has brought back.
    """

    archive: ArchiveRef
    context_ref: str
    policies: tuple[ContextPolicy, ...]
    before: int
    layers: Layers | None = None


class Recalled(Value):
    """The fetched part of a lane.

    Attributes:
        packed: The entries, and the gap before them.
    """

    packed: Packed
