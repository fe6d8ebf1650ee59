"""The form of JSON Schema that Anthropic's API accepts for answers. Pure.

The API refuses objects that are not closed, and keywords that it does not know. So every object is closed, `oneOf`
becomes `anyOf`, and other keywords move to the description, where the model reads them. Sessions validate answers
against the caller's schema all the same. The rule is that of `transform_schema` in the package `anthropic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from clew_activities.providers.answer_object import list_subschemas

_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))
_DEFINITIONS = ("$defs", "definitions")
_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))


def make_answer_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Make the schema that the API gets; None: there is none, or it has no form that the API accepts."""
    return None if schema is None or find_loss(schema) else make_closed_schema(schema)


def make_closed_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make the schema that the API gets; None: it has no form that the API accepts, such as a schema of any value."""
    try:
        return _close(schema)
    except _Inexpressible:
        return None


def find_loss(schema: Mapping[str, Any]) -> str | None:
    """Find what the closed form of a schema would lose, or what the API refuses in it; None: nothing."""
    references: dict[str, set[str]] = {}
    names = ["#"]
    while names:
        name = names.pop()
        if name in references:
            continue
        part = schema if name == "#" else _find_definition(schema, name)
        if not isinstance(part, dict):
            return f"the reference {name!r}"
        subschemas = list_subschemas({key: value for key, value in part.items() if key not in _DEFINITIONS})
        if any(map(_has_any_members, subschemas)):
            return "the members of an object whose names are not known"
        references[name] = {each["$ref"] for each in subschemas if isinstance(each.get("$ref"), str)}
        names += references[name]
    return "a recursive reference" if _has_cycle(references) else None


def _find_definition(schema: Mapping[str, Any], reference: str) -> Any:
    _, _, name = reference.rpartition("/")
    keyword = "definitions" if reference.startswith("#/definitions/") else "$defs"
    return schema.get(keyword, {}).get(unquote(name).replace("~1", "/").replace("~0", "~"))


def _has_any_members(subschema: Mapping[str, Any]) -> bool:
    """Whether a schema is of an object with members of any name."""
    others = subschema.get("additionalProperties")
    kinds = subschema.get("type")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    return (
        isinstance(others, dict)
        or "patternProperties" in subschema
        or (is_object and not subschema.get("properties") and others is not False)
    )


def _has_cycle(references: Mapping[str, set[str]]) -> bool:
    """Whether a part refers to itself, also by way of others."""
    try:
        TopologicalSorter(references).prepare()
    except CycleError:
        return True
    return False


class _Inexpressible(Exception):
    """A subschema has no form that the API accepts."""


def _close(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise _Inexpressible
    rest = dict(schema)
    closed: dict[str, Any] = {}
    for keyword in _DEFINITIONS:
        if keyword in rest:
            closed[keyword] = _close_each(rest.pop(keyword))
    if "$ref" in rest:
        return closed | {"$ref": rest["$ref"]}
    kind = rest.pop("type", None)
    branches = {keyword: rest.pop(keyword, None) for keyword in ("anyOf", "oneOf", "allOf")}
    literals = _take_literals(rest)
    combined = next((keyword for keyword, parts in branches.items() if isinstance(parts, list)), None)
    closed |= literals
    if combined:
        closed["allOf" if combined == "allOf" else "anyOf"] = [_close(part) for part in branches[combined]]
    elif not literals:
        if isinstance(kind, list):
            return closed | {"anyOf": [_close({**rest, "type": each}) for each in kind]}
        if kind not in _TYPES:
            raise _Inexpressible
        closed["type"] = kind
    for keyword in ("description", "title"):
        if keyword in rest:
            closed[keyword] = rest.pop(keyword)
    if not literals:
        closed |= _take_content(kind, rest)
    if rest:
        note = "{" + ", ".join(f"{keyword}: {value}" for keyword, value in rest.items()) + "}"
        closed["description"] = f"{closed['description']}\n\n{note}" if "description" in closed else note
    return closed


def _close_each(schemas: object) -> dict[str, Any]:
    if not isinstance(schemas, Mapping):
        raise _Inexpressible
    return {name: _close(schema) for name, schema in schemas.items()}


def _take_literals(rest: dict[str, Any]) -> dict[str, Any]:
    """Take `enum` and `const` from the keywords that are left, if they hold no objects and no arrays."""
    literals: dict[str, Any] = {}
    values = rest.get("enum")
    if isinstance(values, list) and values and all(map(_is_primitive, values)):
        literals["enum"] = rest.pop("enum")
    if "const" in rest and _is_primitive(rest["const"]):
        literals["const"] = rest.pop("const")
    return literals


def _take_content(kind: object, rest: dict[str, Any]) -> dict[str, Any]:
    """Take the keywords that the API knows for a type from those that are left."""
    content: dict[str, Any] = {}
    if kind == "object":
        content["properties"] = _close_each(rest.pop("properties", {}))
        rest.pop("additionalProperties", None)
        content["additionalProperties"] = False
        if "required" in rest:
            content["required"] = rest.pop("required")
    elif kind == "string" and rest.get("format") in _FORMATS:
        content["format"] = rest.pop("format")
    elif kind == "array":
        if "items" in rest:
            content["items"] = _close(rest.pop("items"))
        if rest.get("minItems") in (0, 1):
            content["minItems"] = rest.pop("minItems")
    return content


def _is_primitive(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
