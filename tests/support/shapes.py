"""The shapes of the durable formats as JSON Schemas, and what differs between two recordings of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from clew.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    ForkPayload,
    InputPayload,
    OperationPayload,
    RunPayload,
    SessionPayload,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew_activities.archive import Head, formats
from clew_activities.checkpoint_signing import Checkpoint
from clew_activities.model.summary_calls import EARLIER_CALLS, EarlierCall
from clew_workflows import protocol
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.protocol import SessionEffect
from clew_workflows.session import carried, checkpoints
from clew_workflows.session.state import State
from clew_workflows.thread.lane import ArchivedPart
from clew_workflows.values import Value

Json = dict[str, Any]
ENTRIES = (
    ApprovalPayload, AssistantMessage, ConfigPayload, ErrorPayload, ForkPayload, InputPayload, OperationPayload,
    RunPayload, SessionPayload, SummaryPayload, ToolMessage, UserMessage,
)  # fmt: skip
WORK = tuple(
    kind
    for name, kind in sorted(vars(protocol).items())
    if isinstance(kind, type)
    and issubclass(kind, Value)
    and kind.__module__ == protocol.__name__
    and not name.startswith("_")
    and kind.__subclasses__() == []
)
"""What workflows and activities exchange."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The types that a format is made of.

    Attributes:
        version: The version of the format; None: it has none, and must stay readable without one.
        may_grow: Whether a new field that may be absent leaves the version as it is: older readers ignore it.
        types: The types.
    """

    version: int | None
    may_grow: bool
    types: tuple[Any, ...]

    def as_dict(self) -> Json:
        """The version, and the schemas of the types."""
        adapters: list[tuple[Any, Literal["validation", "serialization"], TypeAdapter[Any]]] = [
            (kind, "validation", TypeAdapter(kind)) for kind in self.types
        ]
        roots, shared = TypeAdapter.json_schemas(adapters)
        schemas = {getattr(kind, "__name__", str(kind)): schema for (kind, _), schema in roots.items()}
        return {"version": self.version, "schemas": _strip({**schemas, **shared.get("$defs", {})})}


SHAPES: Mapping[str, Shape] = {
    "carried state": Shape(carried.FORMAT.version, False, (State, RequestOutcome, ArchivedPart, SessionEffect)),
    "checkpoint": Shape(checkpoints.FORMAT.version, False, (Checkpoint,)),
    "archive node": Shape(formats.NODE.version, False, (formats.Ref,)),
    "archive head": Shape(formats.HEAD.version, True, (Head,)),
    "archive segment": Shape(formats.SEGMENT.version, True, ENTRIES),
    "earlier calls of a summary": Shape(EARLIER_CALLS.version, True, (EarlierCall,)),
    "activities": Shape(None, True, WORK),
}
"""Exports and saved histories have the rows of segments and of Temporal, and their own version in the first line."""


@cache
def describe_shapes() -> dict[str, Json]:
    """Describe all formats as they are now, for a corpus."""
    return {name: shape.as_dict() for name, shape in SHAPES.items()}


def find_problems(released: Mapping[str, Json], current: Mapping[str, Json]) -> Iterator[str]:
    """Compare the shapes of a released version with the present ones. Each problem says what to do."""
    for name, before in released.items():
        after = current.get(name)
        if after is None:
            yield f"the {name} is no longer recorded: its reader must stay as long as the version is supported"
            continue
        differing = list(find_differences(before["schemas"], after["schemas"], may_grow=SHAPES[name].may_grow))
        if differing and before["version"] == after["version"]:
            places = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
            if after["version"] is None:
                yield f"the {name} have another shape at {places}: add fields with a default, or types of new names"
            else:
                yield (
                    f"the {name} has another shape at {places}, and its version is still {after['version']}: raise "
                    "the version of its FORMAT, and add a step that upgrades the version before"
                )


def find_differences(before: Any, after: Any, path: str = "", *, may_grow: bool) -> Iterator[str]:
    """Find where a schema differs from an older one. With `may_grow`, a field that may be absent is no difference."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after:
            yield path
        return
    for key in sorted(before.keys() | after.keys()):
        if key not in after:
            yield f"{path}/{key}"
        elif key in before:
            yield from find_differences(before[key], after[key], f"{path}/{key}", may_grow=may_grow)
        # New types, and new properties: a required one is also a difference of `required`.
        elif not (may_grow and (path == "" or path.endswith("/properties"))):
            yield f"{path}/{key}"


def _strip(value: Any) -> Any:
    """Remove the texts of a schema. Lists of names are sorted."""
    if isinstance(value, list):
        return sorted(value) if all(isinstance(item, str) for item in value) else [_strip(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _strip(item)
        for key, item in value.items()
        if not (key in ("title", "description") and isinstance(item, str))
    }
