"""The form of JSON Schema that Gemini's API accepts for answers. Pure.

`responseJsonSchema` takes a part of JSON Schema, which ai.google.dev/api/generate-content#generationconfig lists. A
keyword that it does not take is left out, so that the schema allows more; the prompt describes the caller's schema
then, and sessions validate answers against it all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from clew_activities.providers.answer_object import list_subschemas, rewrite_schema

_KEYWORDS = frozenset(
    (
        "$defs",
        "$ref",
        "type",
        "format",
        "title",
        "description",
        "enum",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "anyOf",
        "oneOf",
        "properties",
        "additionalProperties",
        "required",
    )
)
_SILENT = frozenset(("$schema", "$id", "$comment", "default", "examples"))
"""Keywords that say nothing of which answers are valid."""
_DEFINITION = "#/$defs/"


def make_answer_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """Make the schema that the API gets, and whether it says all that the caller's says.

    The schema is None if it has no form that the API accepts: its references lead elsewhere than to `$defs`, or to
    themselves.
    """
    given = rewrite_schema(dict(schema), _replace_older_forms)
    fitted = rewrite_schema(given, _keep_keywords)
    if not _has_own_references(fitted):
        return None, False
    return fitted, not any(map(_loses, list_subschemas(given)))


def _replace_older_forms(subschema: dict[str, Any]) -> dict[str, Any]:
    """Write a constant as an enumeration, and the definitions of older drafts as those of the newest."""
    replaced = dict(subschema)
    if isinstance(replaced.get("const"), str | int | float) and "enum" not in replaced:
        value = replaced.pop("const")
        replaced["enum"] = [value]
        replaced.setdefault("type", _name_type(value))
    if isinstance(replaced.get("definitions"), dict):
        replaced["$defs"] = {**replaced.pop("definitions"), **replaced.get("$defs", {})}
    if isinstance(reference := replaced.get("$ref"), str) and reference.startswith("#/definitions/"):
        replaced["$ref"] = _DEFINITION + reference.removeprefix("#/definitions/")
    return replaced


def _name_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "integer" if isinstance(value, int) else "number"


def _keep_keywords(subschema: dict[str, Any]) -> dict[str, Any]:
    # "If $ref is set on a sub-schema, no other properties, except for than those starting as a $, may be set."
    if "$ref" in subschema:
        return {keyword: content for keyword, content in subschema.items() if keyword in ("$ref", "$defs")}
    return {
        keyword: content
        for keyword, content in subschema.items()
        # It takes texts and numbers alone.
        if keyword in _KEYWORDS and (keyword != "enum" or _is_plain(content))
    }


def _loses(subschema: Mapping[str, Any]) -> bool:
    kept = _keep_keywords(dict(subschema))
    return any(keyword not in kept and keyword not in _SILENT for keyword in subschema)


def _is_plain(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, str | int | float) and not isinstance(value, bool) for value in values
    )


def _has_own_references(schema: Mapping[str, Any]) -> bool:
    """Whether all references lead to a definition, and none back to itself."""
    definitions = schema.get("$defs", {})
    edges: dict[str, set[str]] = {}
    for name, part in {"": {k: v for k, v in schema.items() if k != "$defs"}, **definitions}.items():
        references = [each["$ref"] for each in list_subschemas(part) if "$ref" in each] if part else []
        if any(not isinstance(one, str) or not one.startswith(_DEFINITION) for one in references):
            return False
        edges[name] = {one.removeprefix(_DEFINITION) for one in references}
        if not edges[name] <= definitions.keys():
            return False
    try:
        TopologicalSorter(edges).prepare()
    except CycleError:
        return False
    return True
