"""An MCP server whose tools are hard to fit. `python mcp_tools.py hard|many`. Each answers its arguments.

It needs nothing but Python, so that it starts at once.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}

HARD: dict[str, dict[str, Any]] = {
    "any_root": {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "one_root": {
        "type": "object",
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "radius": {"type": "integer"}},
                "required": ["kind", "radius"],
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
                "required": ["kind", "side"],
            },
        ],
    },
    "no_properties": {"type": "object"},
    "long_description": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "odd_names": {
        "type": "object",
        "properties": {
            "$top": {"type": "integer"},
            "filter[name]": {"type": "string"},
            "x" * 70: {"type": "string"},
        },
        "required": ["$top", "filter[name]"],
    },
    "type_lists": {
        "type": "object",
        "properties": {"when": {"type": ["string", "null"]}, "limits": {"type": ["array", "null"], "items": {}}},
        "required": ["when"],
    },
    "constants": {
        "type": "object",
        "properties": {
            "version": {"const": 2},
            "level": {"type": "integer", "enum": [1, 2, 3]},
            "mode": {"enum": ["fast", "slow", ""]},
        },
        "required": ["version", "level", "mode"],
    },
    "references": {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Point", "description": "Where."}},
        "required": ["at"],
        "$defs": {"Point": _POINT},
    },
    "no_items": {"type": "object", "properties": {"tags": {"type": "array"}}, "required": ["tags"]},
    "any_value": {"type": "object", "properties": {"value": True, "note": {"description": "Anything."}}},
    "nested_union": {
        "type": "object",
        "properties": {"size": {"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 100}]}},
        "required": ["size"],
    },
    "patterns": {
        "type": "object",
        "properties": {
            "word": {"type": "string", "pattern": "^[a-z]"},
            "code": {"type": "string", "pattern": r"^\w+$", "minLength": 2},
            "page": {"type": "string", "maxLength": 20_000},
        },
        "required": ["word", "code", "page"],
    },
}
"""Schemas that some server refuses, by the name of the tool."""

MANY = {
    f"tool_{number:03}": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for number in range(150)
}


def describe(name: str) -> str:
    """Make the description of a tool. It begins with its name."""
    return f"{name}: {'A long story. ' * 360}" if name == "long_description" else f"{name}: a tool."


def serve(schemas: dict[str, dict[str, Any]]) -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result: Any
        match request["method"]:
            case "initialize":
                result = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "hard", "version": "1"},
                }
            case "tools/list":
                tools = [
                    {"name": name, "description": describe(name), "inputSchema": schema}
                    for name, schema in schemas.items()
                ]
                result = {"tools": tools}
            case _:
                arguments = request["params"].get("arguments") or {}
                result = {"content": [{"type": "text", "text": json.dumps(arguments)}]}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(HARD if sys.argv[1] == "hard" else MANY)
