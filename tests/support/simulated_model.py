"""A model that does what it is told: it calls tools, fills schemas, and else says something. It thinks nothing."""

from __future__ import annotations

import json
import re
from typing import Any

from clew.local import Reply, ToolCall

STORY = "Fine. One, two, three, four, five, six, seven, eight, nine, ten."


def simulate(body: dict[str, Any]) -> Reply:
    """Call a tool if one is forced or a user asks, fill the schema of the answer, or tell a story."""
    newest, tools = body["messages"][-1], body.get("tools") or []
    choice = body.get("tool_choice", "auto")
    text = _read_text(newest["content"])
    if tools and choice != "none" and (choice != "auto" or newest["role"] == "user"):
        named = choice["function"]["name"] if isinstance(choice, dict) else None
        functions = [tool["function"] for tool in tools]
        function = next((one for one in functions if one["name"] == named), functions[0])
        arguments = fill(function.get("parameters") or {}, text)
        return Reply(tool_calls=[ToolCall(function["name"], arguments, f"call{len(body['messages'])}")])
    form = body.get("response_format") or {}
    schema = (form.get("json_schema") or {}).get("schema", {})
    if schema.get("properties"):
        return Reply(json.dumps(fill(schema, text)))
    if form:
        return Reply('{"setup": "Why?", "punchline": "Because."}')
    return Reply(STORY, tokens_per_second=2000)


def fill(schema: dict[str, Any], text: str) -> Any:
    """Make a value that meets a schema, with the numbers and the quotations of a text."""
    return _fill(schema, text, schema)


def _fill(schema: dict[str, Any], text: str, root: dict[str, Any]) -> Any:
    if name := schema.get("$ref"):
        return _fill(root["$defs"][name.rpartition("/")[2]], text, root)
    for alternatives in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        if alternatives:
            return _fill(alternatives[0], text, root)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "object":
            return {name: _fill(part, text, root) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [_fill(schema.get("items", {}), text, root)]
        case "integer" | "number":
            return int(found[0]) if (found := re.search(r"\d+", text)) else 3
        case "boolean":
            return True
        case "null":
            return None
    return found[1] if (found := re.search(r"'([^']+)'", text)) else "Porto"


def _read_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or ())
