"""The answers of MCP servers, made usable part by part: what the protocol does not permit is left out, the rest kept.

The package `mcp` validates an answer as a whole, so that one wrong field would cost all others. Pure: no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from clew_activities.tools.mcp.mcp_settings import McpRefused, McpUnavailable

Json = dict[str, Any]

_TOOL_FIELDS: Mapping[str, type | Mapping[str, type]] = {
    "description": str,
    "annotations": {"readOnlyHint": bool, "idempotentHint": bool},
    "execution": {"taskSupport": str},
}
"""The fields of a tool that Clew reads, beside its name and its schema, with their types."""
_ENVELOPE: Mapping[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Fields of results of 2026-07-28. Servers that leave them out mean these values."""
_MAX_DEPTH = 150
"""Most levels of a message. The package `mcp` refuses a whole message with more than 200."""
_NAME_CHARACTERS = 100
_PROBLEM_CHARACTERS = 300
_PART_FIELDS = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource": ("resource",),
    "resource_link": ("uri", "name", "title", "mimeType"),
}
"""The fields that Clew reads of each type of part of a result."""


@dataclass
class ToolsPage:
    """A page of a list of tools.

    Attributes:
        tools: The tools that can be used, as JSON.
        problems: Why others are left out, by name. One without a name has its number.
        ignored: Fields of tools that are left out, described.
        cursor: What the server sends to ask for the next page with, unchanged; None: it is the last one.
    """

    tools: list[Json] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    cursor: Any = None


def read_tools(result: Mapping[str, Any], version: str) -> ToolsPage:
    """Read the result of `tools/list`, tool by tool and field by field.

    Raises:
        McpUnavailable: It has no list of tools, and no page after it.
    """
    listed, cursor = result.get("tools"), result.get("nextCursor")
    page = ToolsPage(cursor=None if cursor is False else cursor)
    if isinstance(listed, dict):
        # By name, as some write it.
        listed = [{"name": name, **each} if isinstance(each, dict) else each for name, each in listed.items()]
    if not isinstance(listed, list):
        if listed is not None or page.cursor is None:
            raise McpUnavailable("its list of tools is not a list")
        listed = []
    for number, each in enumerate(listed):
        name = each.get("name") if isinstance(each, dict) else None
        label = name[:_NAME_CHARACTERS] if isinstance(name, str) and name else f"number {number}"
        ignored: list[str] = []
        tool = _read_tool(each, version, ignored)
        page.ignored += [f"the field {member!r} of tool {label!r} is not valid and is left out" for member in ignored]
        if isinstance(tool, str):
            page.problems.setdefault(label, tool)
        else:
            page.tools.append(tool)
    return page


def _read_tool(listed: Any, version: str, ignored: list[str]) -> Json | str:
    """Read a tool. Returns it as JSON, or why it cannot be used. The names of fields that cannot go to `ignored`."""
    if not isinstance(listed, dict):
        return "it is not an object"
    name, schema = listed.get("name"), listed.get("inputSchema")
    if not isinstance(name, str) or not name:
        return "it has no name"
    if not isinstance(schema, dict):
        return "it has no inputSchema that is an object"
    if version in MODERN_PROTOCOL_VERSIONS and (reason := find_invalid_x_mcp_header(schema)) is not None:
        return f"its headers are not valid: {reason}"[:_PROBLEM_CHARACTERS]
    return {"name": name, "inputSchema": schema, **_pick_fields(listed, _TOOL_FIELDS, ignored)}


def _pick_fields(listed: Json, fields: Mapping[str, type | Mapping[str, type]], ignored: list[str]) -> Json:
    """Pick the fields of these types. The names of fields that have another type go to `ignored`."""
    picked: Json = {}
    for name, kind in fields.items():
        value = listed.get(name)
        if value is None:
            continue
        if isinstance(kind, type) and isinstance(value, kind):
            picked[name] = value
        elif isinstance(kind, Mapping) and isinstance(value, dict):
            picked[name] = _pick_fields(value, kind, ignored)
        else:
            ignored.append(name)
    return picked


def make_tools_result(page: ToolsPage) -> Json:
    """Make the result of `tools/list` that the package `mcp` reads, for every version.

    It has the tools' names and their headers alone: the schemas are read by Clew.
    """
    tools = [{"name": tool["name"], "inputSchema": _keep_headers(tool["inputSchema"])} for tool in page.tools]
    return {"tools": tools, **_ENVELOPE, **({} if page.cursor is None else {"nextCursor": "next"})}


def _keep_headers(schema: Json) -> Json:
    properties = schema.get("properties")
    return {"type": "object", "properties": properties} if _are_subschemas(properties) else {"type": "object"}


def _are_subschemas(properties: Any) -> bool:
    return isinstance(properties, dict) and all(isinstance(each, dict | bool) for each in properties.values())


def mend_result(method: str, result: Json, version: str) -> Json:
    """Make the result of a request valid, where parts of it can be used.

    Raises:
        McpRefused: A tool or a resource asks for input.
    """
    match method:
        case "tools/call":
            return _mend_call(result, version)
        case "resources/read":
            return _mend_resource(result)
        case "initialize":
            return _mend_handshake(result)
        case "server/discover":
            return _mend_discovery(result)
    return result


def _mend_call(result: Json, version: str) -> Json:
    if result.get("resultType") == "input_required":
        raise McpRefused("its tool asks for input, which a session cannot give")
    content = result.get("content")
    listed = content if isinstance(content, list) else [] if content is None else [content]
    parts = [_mend_part(part) for part in listed]
    mended: Json = {"content": parts, "isError": result.get("isError") in (True, "true", 1), **_ENVELOPE}
    structured = result.get("structuredContent")
    if isinstance(structured, dict) or (structured is not None and version in MODERN_PROTOCOL_VERSIONS):
        mended["structuredContent"] = structured
    elif structured is not None:
        parts.append(_make_text(to_json(structured).decode()))
    elif not parts and content is None:
        others = {
            key: value for key, value in result.items() if key not in (*_ENVELOPE, "_meta", "isError", "content")
        }
        if others:
            parts.append(_make_text(f"[a result without content: {to_json(others).decode()}]"))
    return mended


def _mend_part(part: Any) -> Json:
    """Make a part of a result valid. One that cannot be used becomes a text that says so."""
    if isinstance(part, str):
        return _make_text(part)
    if not isinstance(part, dict):
        return _make_text(to_json(part).decode())
    kind = part.get("type") if part.get("type") is not None or not isinstance(part.get("text"), str) else "text"
    if not isinstance(kind, str) or kind not in _PART_FIELDS:
        return _make_text(f"[a part of the result is left out: its type is {str(kind)[:_NAME_CHARACTERS]!r}]")
    kept: Json = {"type": kind} | {key: part[key] for key in _PART_FIELDS[kind] if part.get(key) is not None}
    if kind == "resource":
        kept["resource"] = _mend_contents(kept.get("resource"))
    elif kind in ("image", "audio") and not isinstance(kept.get("mimeType"), str):
        kept["mimeType"] = ""
    elif kind == "resource_link":
        kept = {key: value for key, value in kept.items() if isinstance(value, str)}
        kept.setdefault("name", kept.get("uri", ""))
    elif kind == "text" and "text" in kept and not isinstance(kept["text"], str):
        kept["text"] = to_json(kept["text"]).decode()
    problem = _find_problem("tools/call", {"content": [kept]})
    return kept if problem is None else _make_text(f"[a part of the result is left out: {kind}: {problem}]")


def _mend_contents(contents: Any) -> Any:
    """Keep what Clew reads of the contents of a resource."""
    if not isinstance(contents, dict):
        return contents
    texts = {key: contents[key] for key in ("uri", "mimeType", "text", "blob") if isinstance(contents.get(key), str)}
    return {"uri": "", **texts}


def _mend_resource(result: Json) -> Json:
    if result.get("resultType") == "input_required":
        raise McpRefused("its resource asks for input, which a session cannot give")
    contents = result.get("contents")
    listed = contents if isinstance(contents, list) else [] if contents is None else [contents]
    parts: list[Any] = []
    for each in listed:
        mended = _mend_contents({"text": each} if isinstance(each, str) else each)
        problem = _find_problem("resources/read", {"contents": [mended]})
        uri = mended["uri"] if isinstance(mended, dict) else ""
        parts.append(
            mended if problem is None else {"uri": uri, "text": f"[a part of the resource is left out: {problem}]"}
        )
    return {"contents": parts, **_ENVELOPE}


def _mend_handshake(result: Json) -> Json:
    """Keep the version and the capabilities that can be used."""
    version = result.get("protocolVersion")
    info = result.get("serverInfo")
    return {
        "protocolVersion": version if isinstance(version, str) else LATEST_HANDSHAKE_VERSION,
        "capabilities": _mend_capabilities(result.get("capabilities")),
        "serverInfo": {
            key: info[key] if isinstance(info, dict) and isinstance(info.get(key), str) else ""
            for key in ("name", "version")
        },
    }


def _mend_discovery(result: Json) -> Json:
    """Keep the versions and the capabilities that can be used. Without versions it is no answer to the request."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list):
        return result
    return {
        "supportedVersions": [version for version in versions if isinstance(version, str)],
        "capabilities": _mend_capabilities(result.get("capabilities")),
        **_ENVELOPE,
    }


def _mend_capabilities(capabilities: Any) -> Json:
    """Keep the only capability that Clew looks at."""
    has_resources = isinstance(capabilities, dict) and isinstance(capabilities.get("resources"), dict)
    return {"resources": {}} if has_resources else {}


def _find_problem(method: str, result: Json) -> str | None:
    """Find why a result is not valid; None: it is. Its parts are the same in all versions of the protocol."""
    try:
        validate_server_result(method, LATEST_HANDSHAKE_VERSION, result)
    except ValidationError as error:
        # The first of the errors that names the part's own type.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        names = [str(step) for step in first["loc"] if isinstance(step, str)]
        return f"{names[-1] if names else 'it'}: {first['msg']}"[:_PROBLEM_CHARACTERS]
    return None


def _make_text(text: str) -> Json:
    return {"type": "text", "text": text}


def read_message(data: bytes | str) -> JSONRPCMessage | None:
    """Read a message of a server. One in a form that only nearly is JSON-RPC is taken as what it means.

    None: it is no message.
    """
    try:
        return jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError:
        pass
    try:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        message: Any = _clean(json.loads(text))
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or ("id" not in message and "method" not in message):
        return None
    message = {**message, "jsonrpc": "2.0"}
    if message.get("error") is not None and "method" not in message:
        message = {"jsonrpc": "2.0", "id": message["id"], "error": _mend_error(message["error"])}
    elif "method" not in message:
        result = message.get("result")
        result = result if isinstance(result, dict) else {"result": result}
        message = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValueError:
        return None


def _mend_error(error: Any) -> Json:
    fields = error if isinstance(error, dict) else {"message": error}
    code, message = fields.get("code"), fields.get("message")
    return {
        "code": code if isinstance(code, int) and not isinstance(code, bool) else types.INTERNAL_ERROR,
        "message": message if isinstance(message, str) else to_json(message).decode(),
        "data": fields.get("data"),
    }


def _clean(value: Any, depth: int = 0) -> Any:
    """Replace halves of characters, which are no text, in all texts of a JSON value, and what is nested too deep."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list() | dict() if depth == _MAX_DEPTH:
            return "[nested too deep]"
        case list():
            return [_clean(each, depth + 1) for each in value]
        case dict():
            return {_clean(key): _clean(each, depth + 1) for key, each in value.items()}
    return value
