"""Bounds of JSON Schemas that come from outside, so that no schema makes a validator run without end.

A validator visits a subschema once for each path of references that leads to it. `check_schema` refuses a schema
whose paths multiply. `StepCounter` counts the visits that depend on the value, without validating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import unquote

from pydantic_core import to_json

from clew_workflows.contract.limits import (
    MAX_ARGUMENT_STEPS,
    MAX_CHAIN,
    MAX_EXPANSION,
    MAX_OVERLAY,
    MAX_PATTERN_CHARACTERS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_PATTERNS,
    MAX_SUBSCHEMAS,
)
from clew_workflows.contract.messages import check_depth

# The outline of a JSON Schema: its subschemas, and which of them apply to the same value or to parts of it.


# Keywords whose subschemas apply to the value itself, then those whose subschemas apply to its parts. Those of older
# drafts are included.
_SAME_VALUE = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
)
ITEMS = ("items", "prefixItems", "additionalItems", "contains")
OTHER_PROPERTIES = ("additionalProperties", "patternProperties")
_PARTS = frozenset((*ITEMS, *OTHER_PROPERTIES, "properties", "propertyNames"))
_DEFINITIONS = ("$defs", "definitions")
SUBSCHEMA_KEYWORDS = frozenset((*_SAME_VALUE, *_PARTS, *_DEFINITIONS)) - {"$ref"}
"""Keywords whose content is a subschema, a list of them, or has them by name."""
KEYWORDS_BY_NAME = frozenset((*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas", "dependencies"))
"""Keywords that have subschemas by name."""
_REFUSED = {
    "$anchor": "refer to definitions by their path, such as '#/$defs/name'",
    "$dynamicAnchor": "refer to definitions by their path, such as '#/$defs/name'",
    "$dynamicRef": "use '$ref'",
    "$recursiveAnchor": "refer to definitions by their path, such as '#/$defs/name'",
    "$recursiveRef": "use '$ref'",
    "unevaluatedItems": "use 'items'",
    "unevaluatedProperties": "use 'additionalProperties'",
}

Subschema = dict[str, Any]


class Outline:
    """The subschemas of a schema as a graph.

    Attributes:
        subschemas: All subschemas; the first one is the schema itself.
        same: For each subschema, the numbers of those that it applies to the same value.
        parts: For each subschema, the numbers of those that it applies to parts of the value.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = dict(schema)
        self._numbers: dict[int, int] = {}
        self.subschemas: list[Subschema] = []
        self.same: list[list[int]] = []
        self.parts: list[list[int]] = []
        self._patterns: set[str] = set()
        self._add(self._root)
        done = 0
        while done < len(self.subschemas):
            self._read(done)
            done += 1

    def check(self) -> None:
        """Check `MAX_OVERLAY`, `MAX_CHAIN` and `MAX_EXPANSION`.

        Raises:
            ValueError: The schema exceeds one of them, or a subschema refers to itself for the same value.
        """
        overlay = [0] * len(self.subschemas)
        chain = [0] * len(self.subschemas)
        for component in _find_components(self.same):
            number = component[0]
            if len(component) > 1 or number in self.same[number]:
                raise ValueError(
                    f"{self._describe(number)} refers to itself for the same value: remove that reference"
                )
            overlay[number] = 1 + sum(overlay[target] for target in self.same[number])
            chain[number] = 1 + max((chain[target] for target in self.same[number]), default=0)
            if overlay[number] > MAX_OVERLAY:
                raise ValueError(
                    f"{self._describe(number)} applies over {MAX_OVERLAY} subschemas to one value, references "
                    "followed: refer to fewer alternatives"
                )
            if chain[number] > MAX_CHAIN:
                raise ValueError(
                    f"{self._describe(number)} applies to one value through over {MAX_CHAIN} subschemas, each within "
                    "the one before: refer to it directly"
                )
        edges = [same + parts for same, parts in zip(self.same, self.parts, strict=True)]
        expansion = [0] * len(self.subschemas)
        for component in _find_components(edges):
            members = set(component)
            size = len(component) + sum(
                expansion[target] for number in component for target in edges[number] if target not in members
            )
            if size > MAX_EXPANSION:
                raise ValueError(
                    f"{self._describe(component[0])} has over {MAX_EXPANSION} subschemas, references followed: refer "
                    "to each definition in fewer places"
                )
            for number in component:
                expansion[number] = size

    def get_number(self, subschema: Subschema) -> int:
        """Return the number of a subschema."""
        return self._numbers[id(subschema)]

    def _read(self, number: int) -> None:
        same: list[int] = []
        parts: list[int] = []
        for keyword, content in self.subschemas[number].items():
            if keyword in _SAME_VALUE:
                targets = self._resolve(content) if keyword == "$ref" else content
                same += map(self._add, list_subschemas(keyword, targets))
            elif keyword in _PARTS:
                parts += map(self._add, list_subschemas(keyword, content))
            elif keyword in _DEFINITIONS:
                for definition in list_subschemas(keyword, content):
                    self._add(definition)
            elif keyword in _REFUSED:
                raise ValueError(f"{keyword!r} is not supported: {_REFUSED[keyword]}")
            elif keyword == "$id" and number:
                raise ValueError("'$id' is supported only at the top of a schema: leave it out")
            if keyword == "pattern":
                self._check_patterns([content])
            elif keyword == "patternProperties" and isinstance(content, dict):
                self._check_patterns(content)
        self.same.append(same)
        self.parts.append(parts)

    def _add(self, subschema: Subschema) -> int:
        number = self._numbers.setdefault(id(subschema), len(self.subschemas))
        if number == len(self.subschemas):
            if number == MAX_SUBSCHEMAS:
                raise ValueError(f"the schema has over {MAX_SUBSCHEMAS} subschemas: ask for less at once")
            self.subschemas.append(subschema)
        return number

    def _resolve(self, reference: object) -> Any:
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            raise ValueError(
                f"the reference {str(reference)[:100]!r} is not supported: a schema can refer only to its "
                "own parts, such as '#/$defs/name'"
            )
        target: Any = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = None if target is not self._root and "$id" in target else target.get(name)
            elif isinstance(target, list) and name.isascii() and name.isdigit() and len(name) < 6:
                target = target[int(name)] if int(name) < len(target) else None
            else:
                target = None
        if not isinstance(target, dict | bool):
            raise ValueError(f"the reference {reference[:100]!r} leads to no part of the schema")
        return target

    def _check_patterns(self, patterns: Iterable[Any]) -> None:
        new = {pattern for pattern in patterns if isinstance(pattern, str)} - self._patterns
        if any(len(pattern) > MAX_PATTERN_CHARACTERS for pattern in new):
            raise ValueError(f"a regular expression has at most {MAX_PATTERN_CHARACTERS} characters")
        self._patterns |= new
        if len(self._patterns) > MAX_SCHEMA_PATTERNS:
            raise ValueError(f"a schema has at most {MAX_SCHEMA_PATTERNS} different regular expressions")

    def _describe(self, number: int) -> str:
        """Describe a subschema by its definition's path, if it is a definition."""
        for keyword in _DEFINITIONS:
            definitions = self._root.get(keyword)
            for name, definition in definitions.items() if isinstance(definitions, dict) else ():
                if definition is self.subschemas[number]:
                    return f"'#/{keyword}/{name[:50]}'"
        return "a subschema" if number else "the schema"


def list_subschemas(keyword: str, content: Any) -> list[Subschema]:
    """List the subschemas in a keyword's content, without `true` and `false`, which need no visit."""
    if isinstance(content, dict):
        content = content.values() if keyword in KEYWORDS_BY_NAME else (content,)
    return [item for item in content if isinstance(item, dict)] if isinstance(content, Iterable) else []


def _find_components(edges: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Find the strongly connected components of a graph (Tarjan), each after those that it leads to."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for start in range(len(edges)):
        if start in order:
            continue
        pending = [(start, iter(edges[start]))]
        order[start] = lowest[start] = len(order)
        path.append(start)
        on_path.add(start)
        while pending:
            number, targets = pending[-1]
            for target in targets:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    path.append(target)
                    on_path.add(target)
                    pending.append((target, iter(edges[target])))
                    break
                if target in on_path:
                    lowest[number] = min(lowest[number], order[target])
            else:
                pending.pop()
                if pending:
                    parent = pending[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[number])
                if lowest[number] == order[number]:
                    component = []
                    while number in on_path:
                        component.append(path.pop())
                        on_path.remove(component[-1])
                    yield component


TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
"""The types that a schema may name."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema is within all bounds, and that the types which it names exist.

    Raises:
        ValueError: The schema exceeds a bound, has a keyword that is not supported, or an unknown type; the message
            says what to do.
    """
    size = len(to_json(schema))
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema has {size} bytes, at most {MAX_SCHEMA_BYTES} are accepted")
    try:
        check_depth(schema, MAX_SCHEMA_DEPTH)
    except ValueError as error:
        raise ValueError(f"the schema is {error}: move inner parts to '$defs'") from None
    outline = Outline(schema)
    outline.check()
    for subschema in outline.subschemas:
        _check_type(subschema)


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Check that the validation of a tool call's arguments is short enough.

    Raises:
        ValueError: It takes over `MAX_ARGUMENT_STEPS` visits; the message says what to do.
    """
    StepCounter(schema).check(arguments, MAX_ARGUMENT_STEPS)


def _check_type(subschema: Subschema) -> None:
    if "type" not in subschema:
        return
    named = subschema["type"]
    for name in named if isinstance(named, list) and named else [named]:
        if not isinstance(name, str) or name not in TYPES:
            raise ValueError(f"{str(named)[:50]!r} is not a type: name one of {', '.join(TYPES)}, or a list of them")


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


class StepCounter:
    """Counts the visits to subschemas of a validator without a cache, for many values of one schema.

    Raises:
        ValueError: `check_schema` refuses the schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._outline = Outline(schema)
        self._outline.check()
        self._closures: dict[int, Counter[int]] = {}
        self._overlays: dict[frozenset[tuple[int, int]], _Overlay] = {}

    def check(self, arguments: Mapping[str, Any], limit: int) -> None:
        """Check that the validation of arguments takes at most `limit` visits.

        Raises:
            ValueError: It takes more; the message says what to do.
        """
        if self.count(arguments, limit) > limit:
            raise ValueError(f"validating them takes over {limit} steps: send less at once, and nest it less deeply")

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
