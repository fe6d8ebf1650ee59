"""The schemas that OpenAI's strict mode accepts. Pure."""

from __future__ import annotations

from typing import Any

from clew_activities.providers.answer_object import list_subschemas

# Keywords that strict mode refuses, and those of which a subschema needs one.
_REFUSED = frozenset(
    [
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "default",
        "minLength",
        "maxLength",
        "uniqueItems",
        "prefixItems",
        "contains",
        "minContains",
        "maxContains",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    ]
)
_TYPING = frozenset(("type", "anyOf", "enum", "const", "$ref"))


def is_strict(schema: dict[str, Any]) -> bool:
    """Whether OpenAI's strict mode accepts the schema; it refuses `strict` with any other.

    Every object is closed, every property required, every value has a type, and no keyword is refused.
    """
    return all(map(_is_part_strict, list_subschemas(schema)))


def _is_part_strict(subschema: dict[str, Any]) -> bool:
    if _REFUSED & subschema.keys() or not _TYPING & subschema.keys():
        return False
    if "$ref" in subschema:
        return len(subschema) == 1
    properties = subschema.get("properties")
    if subschema.get("type") != "object" and properties is None:
        return True
    required = subschema.get("required", [])
    return subschema.get("additionalProperties") is False and set(properties or ()) == set(required)
