"""Names of the tools of MCP servers: `mcp:<server>/<tool>` in configurations, `mcp__<server>__<tool>` for models.

Providers accept letters, digits, `_` and `-` in the name of a tool, and at most 64 of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

ALL_TOOLS = "*"
"""The name that stands for all tools of a server."""
MAX_SERVER_CHARACTERS = 32
"""Longest name of a server."""
_MAX_TOOL_CHARACTERS = 64
_HASH_CHARACTERS = 8
# Without `__` inside and `_` at its ends, the name of a server ends where the tool's begins.
_SERVER = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_CONFIGURED = re.compile(r"mcp:([^/]+)/(.+)", re.DOTALL)


def is_server_name(name: str) -> bool:
    """Whether a server can have this name: 1 to 32 letters, digits, `-`, and single `_` between them."""
    return len(name) <= MAX_SERVER_CHARACTERS and _SERVER.fullmatch(name) is not None


def split_configured_name(name: str) -> tuple[str, str] | None:
    """Split a configuration's `mcp:<server>/<tool>` into server and tool; None: it is another tool's name."""
    match = _CONFIGURED.fullmatch(name)
    return (match[1], match[2]) if match else None


def make_tool_name(server: str, tool: str) -> str:
    """Make the name that models read. A name that had to be changed ends in a hash, so that it stays unique."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    room = _MAX_TOOL_CHARACTERS - len(_make_prefix(server))
    if safe != tool or len(safe) > room:
        safe = f"{safe[: room - _HASH_CHARACTERS - 1]}-{sha256(tool.encode()).hexdigest()[:_HASH_CHARACTERS]}"
    return _make_prefix(server) + safe


def find_server(tool_name: str) -> str | None:
    """Find the server in the name that models read; None: it is another tool's name."""
    kind, _, rest = tool_name.partition("__")
    server, separator, _ = rest.partition("__")
    return server if kind == "mcp" and separator and is_server_name(server) else None


def selects(configured: str, tool_name: str) -> bool:
    """Whether a name in a configuration means the tool that models read under `tool_name`."""
    split = split_configured_name(configured)
    if split is None:
        return configured == tool_name
    server, tool = split
    return find_server(tool_name) == server if tool == ALL_TOOLS else make_tool_name(server, tool) == tool_name


def is_selected(configured: str, tools: Iterable[str]) -> bool:
    """Whether a name in a configuration means one of its `tools`, or all tools of a server that it has tools of."""
    split = split_configured_name(configured)
    if split is None:
        return configured in tools
    server, tool = split
    others = [other for name in tools if (other := split_configured_name(name)) and other[0] == server]
    return bool(others) if tool == ALL_TOOLS else any(other in (tool, ALL_TOOLS) for _, other in others)


def _make_prefix(server: str) -> str:
    return f"mcp__{server}__"
