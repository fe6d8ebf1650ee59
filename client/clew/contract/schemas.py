"""Bounds of JSON Schemas that come from outside, so that no schema makes a validator run without end.

A validator visits a subschema once for each path of references that leads to it. `check_schema` refuses a schema
whose paths multiply. `count_steps` counts the visits that depend on the value, without validating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic_core import to_json

from clew.contract.schema_outline import ITEMS, OTHER_PROPERTIES, Outline, Subschema, list_subschemas

MAX_SCHEMA_BYTES = 131_072
"""Largest schema, in bytes of JSON."""
MAX_DEPTH = 64
"""Most levels of nesting in the JSON of a schema."""
TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
"""The types that a schema may name."""
MAX_ARGUMENT_STEPS = 100_000
"""Most visits to subschemas in the validation of one tool call's arguments."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema is within all bounds, and that the types which it names exist.

    Raises:
        ValueError: The schema exceeds a bound, has a keyword that is not supported, or an unknown type; the message
            says what to do.
    """
    size = len(to_json(schema))
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema has {size} bytes, at most {MAX_SCHEMA_BYTES} are accepted")
    _check_depth(schema)
    outline = Outline(schema)
    outline.check()
    for subschema in outline.subschemas:
        _check_type(subschema)


def count_steps(schema: Mapping[str, Any], value: Any, limit: int) -> int:
    """Count the visits to subschemas of a validator without a cache; counting ends soon after `limit`.

    Raises:
        ValueError: `check_schema` refuses the schema.
    """
    return StepCounter(schema).count(value, limit)


class StepCounter:
    """Counts the visits of a validator for many values of one schema.

    Raises:
        ValueError: `check_schema` refuses the schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        outline = Outline(schema)
        outline.check()
        self._meter = _Meter(outline)

    def count(self, value: Any, limit: int) -> int:
        """Count the visits for a value; counting ends soon after `limit`."""
        return self._meter.count(value, limit)


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Check that the validation of a tool call's arguments is short enough.

    Raises:
        ValueError: It takes over `MAX_ARGUMENT_STEPS` visits; the message says what to do.
    """
    check_steps(StepCounter(schema), arguments, MAX_ARGUMENT_STEPS)


def check_steps(counter: StepCounter, arguments: Mapping[str, Any], limit: int) -> None:
    """Check that the validation of arguments takes at most `limit` visits.

    Raises:
        ValueError: It takes more; the message says what to do.
    """
    if counter.count(arguments, limit) > limit:
        raise ValueError(f"validating them takes over {limit} steps: send less at once, and nest it less deeply")


def _check_type(subschema: Subschema) -> None:
    if "type" not in subschema:
        return
    named = subschema["type"]
    for name in named if isinstance(named, list) and named else [named]:
        if not isinstance(name, str) or name not in TYPES:
            raise ValueError(f"{str(named)[:50]!r} is no type: name one of {', '.join(TYPES)}, or a list of them")


def _check_depth(schema: Any) -> None:
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"the schema is nested over {MAX_DEPTH} levels deep: move inner parts to '$defs'")


class _Overlay:
    """The subschemas that apply to one value, each with the number of paths that lead to it.

    Attributes:
        applied: The number of paths to each subschema, by the subschema's number.
        weight: The number of all paths.
        declared: The names of properties that the subschemas declare.
        parts: A cache: the overlays of the value's parts.
    """

    def __init__(self, outline: Outline, applied: Counter[int]) -> None:
        self.applied = applied
        self.weight = applied.total()
        declared = (outline.subschemas[number].get("properties") for number in applied)
        self.declared = frozenset(name for names in declared if isinstance(names, dict) for name in names)
        self.parts: dict[str | _Part, _Overlay] = {}


class _Part(Enum):
    """A part of a value that no subschema names, with the keywords that apply to it."""

    ITEM = ITEMS
    NAME = ("propertyNames",)
    OTHER_PROPERTY = OTHER_PROPERTIES


class _Meter:
    """Counts the visits to subschemas of a validator without a cache."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._closures: dict[int, Counter[int]] = {}
        self._overlays: dict[frozenset[tuple[int, int]], _Overlay] = {}

    def count(self, value: Any, limit: int) -> int:
        """Count the visits for a value; counting ends soon after `limit`."""
        steps = 0
        pending = [(value, self._find_overlay(Counter({0: 1})))]
        while pending and steps <= limit:
            container, overlay = pending.pop()
            steps += overlay.weight
            if isinstance(container, dict):
                steps += len(container) * self._enter(overlay, _Part.NAME).weight
                pending += (
                    (
                        part,
                        self._enter(overlay, name if name in overlay.declared else _Part.OTHER_PROPERTY),
                    )
                    for name, part in container.items()
                )
            elif isinstance(container, list | tuple):
                item = self._enter(overlay, _Part.ITEM)
                pending += ((part, item) for part in container)
        return steps

    def _enter(self, overlay: _Overlay, part: str | _Part) -> _Overlay:
        if part not in overlay.parts:
            applied: Counter[int] = Counter()
            for number, times in overlay.applied.items():
                for subschema in _list_part_subschemas(self._outline.subschemas[number], part):
                    applied[self._outline.get_number(subschema)] += times
            overlay.parts[part] = self._find_overlay(applied)
        return overlay.parts[part]

    def _find_overlay(self, applied: Counter[int]) -> _Overlay:
        """Return the overlay of `applied` and of all subschemas that those apply to the same value."""
        closed: Counter[int] = Counter()
        for number, times in applied.items():
            for target, paths in self._find_closure(number).items():
                closed[target] += times * paths
        key = frozenset(closed.items())
        if key not in self._overlays:
            self._overlays[key] = _Overlay(self._outline, closed)
        return self._overlays[key]

    def _find_closure(self, number: int) -> Counter[int]:
        if number not in self._closures:
            closure = Counter({number: 1})
            for target in self._outline.same[number]:
                closure += self._find_closure(target)
            self._closures[number] = closure
        return self._closures[number]


def _list_part_subschemas(subschema: Subschema, part: str | _Part) -> Iterator[Subschema]:
    """List the subschemas for a part of a value, as if every pattern matched and every position were meant."""
    if isinstance(part, str):
        declared = subschema.get("properties")
        own = declared.get(part) if isinstance(declared, dict) else None
        if isinstance(own, dict):
            yield own
    for keyword in part.value if isinstance(part, _Part) else OTHER_PROPERTIES:
        yield from list_subschemas(keyword, subschema.get(keyword))
