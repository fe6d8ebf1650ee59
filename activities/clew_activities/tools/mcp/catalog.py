"""The tools that an MCP server lists, as sessions can have them. Pure, and without the package `mcp`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clew.tools.definition import ToolDefinition, make_spec
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.names import make_tool_name
from clew_workflows.session.tool_rounds import make_validator

_VERSION_CHARACTERS = 16


class McpTool(ToolDefinition):
    """A tool of an MCP server.

    Attributes:
        server: The name of the server.
        tool: The name that the server has for the tool.
    """

    def __init__(self, server: str, listed: Mapping[str, Any], timeout_seconds: float) -> None:
        if (listed.get("execution") or {}).get("taskSupport") == "required":
            raise TypeError("it runs as an MCP task only, which Clew does not support")
        hints = listed.get("annotations") or {}
        self.server = server
        self.tool: str = listed["name"]
        super().__init__(
            make_spec(make_tool_name(server, self.tool), listed.get("description") or "", listed["inputSchema"]),
            timeout_seconds=timeout_seconds,
            idempotent=bool(hints.get("readOnlyHint") or hints.get("idempotentHint")),
        )
        try:
            make_validator(self.spec["parameters"])
        except ValueError as error:
            raise TypeError(f"its parameters are not valid JSON Schema: {error}") from error


@dataclass(frozen=True)
class Catalog:
    """The tools of one server.

    Attributes:
        tools: The tools that sessions can have, by the server's names.
        problems: Why sessions cannot have the others, by the server's names.
        version: A digest of the tools, with their schemas and settings, whatever their order.
    """

    tools: Mapping[str, McpTool]
    problems: Mapping[str, str]
    version: str

    def find(self, tool_name: str) -> McpTool | None:
        """Find the tool that models call `tool_name`."""
        return next((tool for tool in self.tools.values() if tool.name == tool_name), None)


def make_catalog(server: str, listed: Iterable[Mapping[str, Any]], timeout_seconds: float) -> Catalog:
    """Make the catalog of a server from its list of tools, each as JSON."""
    tools: dict[str, McpTool] = {}
    problems: dict[str, str] = {}
    digests: dict[str, str] = {}
    for entry in listed:
        name = entry["name"]
        try:
            tool = McpTool(server, entry, timeout_seconds)
            digests[name] = compute_digest([tool.spec, tool.timeout_seconds, tool.idempotent])
            tools[name] = tool
        except (TypeError, ValueError, RecursionError) as error:
            problems[name] = str(error)[:500]
    return Catalog(tools, problems, compute_digest(digests)[:_VERSION_CHARACTERS])
