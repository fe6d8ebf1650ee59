"""TypeScript declarations of JSON Schemas, as far as the contract's schemas go."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

JsonSchema = Mapping[str, Any]
_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def declaration(name: str, schema: JsonSchema) -> str:
    """An exported interface for an object's schema, an exported type for any other."""
    comment = _comment(schema.get("description"), "")
    if "properties" not in schema:
        return f"{comment}export type {name} = {type_of(schema)};\n"
    required = schema.get("required", ())
    fields = "".join(_field(key, value, key in required) for key, value in schema["properties"].items())
    return f"{comment}export interface {name} {{\n{fields}}}\n"


def type_of(schema: JsonSchema) -> str:
    """The type of a schema's values.

    Raises:
        ValueError: The schema has a form that no type of the contract has yet.
    """
    match schema:
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case {"const": value}:
            return json.dumps(value)
        case {"enum": list(values)}:
            return _union(json.dumps(value) for value in values)
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            return _union(map(type_of, choices))
        case {"type": "array", "prefixItems": list(items)}:
            return f"[{', '.join(map(type_of, items))}]"
        case {"type": "array", "items": item}:
            return f"Array<{type_of(item)}>"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"Record<string, {type_of(values)}>"
        case {"type": "object", "patternProperties": dict(patterns)}:
            return f"Record<string, {_union(map(type_of, patterns.values()))}>"
        case {"type": "object"} if "properties" not in schema:
            return "Record<string, unknown>"
        case {"type": str(name)} if name in _TYPES:
            return _TYPES[name]
        case _ if not set(schema) - {"description", "default", "title"}:
            return "unknown"
    raise ValueError(f"no type for the schema {json.dumps(schema)[:300]}")


def message_map(name: str, comment: str, messages: Iterable[tuple[str, str, str]]) -> str:
    """An interface that says which message has which input and output, by the names of their types."""
    rows = "".join(
        f"  {_key(message)}: {{ input: {given}; output: {answer} }};\n" for message, given, answer in messages
    )
    return f"{_comment(comment, '')}export interface {name} {{\n{rows}}}\n"


def _field(name: str, schema: JsonSchema, required: bool) -> str:
    optional = "" if required else "?"
    return f"{_comment(schema.get('description'), '  ')}  {_key(name)}{optional}: {type_of(schema)};\n"


def _key(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def _union(types: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(types))


def _comment(text: str | None, indent: str) -> str:
    if not text:
        return ""
    lines = text.replace("*/", "*\\/").splitlines()
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    return f"{indent}/**\n" + "".join(f"{indent} * {line}".rstrip() + "\n" for line in lines) + f"{indent} */\n"
