"""The schemas of MCP servers' tools, in the form that Clew validates: the same meaning, with fewer keywords.

Pure: no I/O, and nothing of the package `mcp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clew_workflows.contract.schemas import KEYWORDS_BY_NAME, SUBSCHEMA_KEYWORDS

MAX_DEPTH = 100
"""Most levels of nesting that are simplified. `check_schema` refuses deeper schemas."""

_ANCHORS = ("$anchor", "$dynamicAnchor")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COMBINING = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
)
_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
# JSON null is a value for these alone.
_VALUES = frozenset(("default", "const", "enum", "examples"))


def simplify_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make the schema of a tool's arguments from the one that a server sends.

    - Members with null stand for absent ones, as Go's servers write them.
    - A schema without a type is that of an object: the protocol permits no other.
    - References to anchors become paths. A schema has one resource, so that dynamic anchors and references are the
      same as others.
    - `unevaluatedProperties` and `unevaluatedItems` become `additionalProperties` and `items`. Beside keywords that
      combine schemas they have no such form, and are left out: the server validates the arguments itself.
    """
    root = _drop_nulls(schema, 0)
    anchors = {
        subschema[keyword]: path
        for path, subschema in _walk(root, "#", 0)
        for keyword in _ANCHORS
        if isinstance(subschema.get(keyword), str)
    }
    for _, subschema in _walk(root, "#", 0):
        _replace_references(subschema, anchors)
        _replace_unevaluated(subschema)
    if root.get("type") is None:
        root["type"] = "object"
    return root


def _drop_nulls(schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Copy a schema and its subschemas without the members whose value is null."""
    copied: dict[str, Any] = {}
    for keyword, content in schema.items():
        if content is None and keyword not in _VALUES:
            continue
        copied[keyword] = content
        if keyword not in SUBSCHEMA_KEYWORDS or depth > MAX_DEPTH:
            continue
        if isinstance(content, list):
            copied[keyword] = [_drop_nulls(each, depth + 1) if isinstance(each, dict) else each for each in content]
        elif isinstance(content, dict) and keyword in KEYWORDS_BY_NAME:
            copied[keyword] = {
                name: _drop_nulls(each, depth + 1) if isinstance(each, dict) else each
                for name, each in content.items()
            }
        elif isinstance(content, dict):
            copied[keyword] = _drop_nulls(content, depth + 1)
    return copied


def _walk(schema: dict[str, Any], path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk through a schema and its subschemas, each with the path that refers to it."""
    yield path, schema
    if depth > MAX_DEPTH:
        return
    for keyword, content in list(schema.items()):
        if keyword not in SUBSCHEMA_KEYWORDS:
            continue
        if isinstance(content, dict) and keyword not in KEYWORDS_BY_NAME:
            yield from _walk(content, f"{path}/{keyword}", depth + 1)
            continue
        items = enumerate(content) if isinstance(content, list) else ()
        named = content.items() if isinstance(content, dict) else items
        for name, each in named:
            if isinstance(each, dict):
                step = str(name).replace("~", "~0").replace("/", "~1").replace("%", "%25")
                yield from _walk(each, f"{path}/{keyword}/{step}", depth + 1)


def _replace_references(subschema: dict[str, Any], anchors: Mapping[str, str]) -> None:
    """Let the references of a subschema name paths, and leave its anchors out."""
    for keyword in _ANCHORS:
        if isinstance(subschema.get(keyword), str):
            del subschema[keyword]
    if subschema.get("$recursiveAnchor") in (True, False):
        del subschema["$recursiveAnchor"]
    for keyword in _REFERENCES:
        reference = subschema.get(keyword)
        if not isinstance(reference, str) or (keyword != "$ref" and "$ref" in subschema):
            continue
        path = "#" if reference == "#" else anchors.get(reference.removeprefix("#")) if reference[:1] == "#" else None
        if path is not None:
            del subschema[keyword]
            subschema["$ref"] = path


def _replace_unevaluated(subschema: dict[str, Any]) -> None:
    for keyword, evaluated in _UNEVALUATED.items():
        if keyword in subschema:
            content = subschema.pop(keyword)
            if not _COMBINING & subschema.keys():
                subschema.setdefault(evaluated, content)
