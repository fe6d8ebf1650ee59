"""Where a session's older entries are, how they come there, and how they come back."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from clew.contract.policy import ContextPolicy
from clew.thread.layers import Layers
from clew_workflows.protocol._value import Value
from clew_workflows.protocol.packed import Packed


class Thresholds(Value):
    """When a run of the workflow gives way to the next one; beyond three times as much it takes no new message.

    Temporal ends a run at 51 200 events, 50 MB, 2 000 updates and 10 000 signals. A worker that takes a session over
    replays its run, at some 0.4 ms of CPU an event: that is what keeps a run short.
    """

    events: int = Field(default=4_000, ge=50, le=15_000)
    bytes: int = Field(default=4_000_000, ge=50_000, le=15_000_000)
    updates: int = Field(default=350, ge=5, le=600)
    signals: int = Field(default=2_500, ge=5, le=3_000)


class ArchiveRef(Value):
    """Where a thread's older entries are: those up to `upto` hang on the index node `root` of the family.

    `execution` is the workflow execution that writes there, all its runs together.
    """

    execution: str
    family: str
    root: str | None = None
    upto: int = -1
    thresholds: Thresholds = Thresholds()


class Archiving(Value):
    """Write to the archive all that the session has said, and what it needs to go on from there.

    `closed`: it goes on no more in this execution.
    """

    archive: ArchiveRef
    closed: bool = False


class Thaw(Value):
    """Fetch what a session that was archived whole goes on from."""

    archive: ArchiveRef
    state: str


class Thawed(Packed):
    """What a session goes on from, where its archive stands, and what has been added there since it was put away."""

    archive: ArchiveRef | None = None
    newer: tuple[dict[str, Any], ...] = ()


class Recall(Value):
    """Fetch the part of a lane that contexts need and the session does not hold.

    Attributes:
        archive: The archive.
        context_ref: The lane.
        policies: The policies of the contexts.
        before: The session holds the lane's messages from this seq on.
        layers: The lane's layers as the session knows them; None: as they are in the archive. The session may know
            operations that are not archived yet, and older layers that an `expand` has brought back.
    """

    archive: ArchiveRef
    context_ref: str
    policies: tuple[ContextPolicy, ...]
    before: int
    layers: Layers | None = None


class Recalled(Value):
    """What of a lane was fetched: the entries, and the gap that is left before them."""

    packed: Packed
