"""The tools of a worker's MCP servers, as sessions can have them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from clew.contract.mcp_names import ALL_TOOLS, find_server, make_tool_name, split_configured_name
from clew.tools.definition import ToolDefinition, make_spec
from clew_activities.mcp.errors import McpUnavailable, UnknownMcpTool
from clew_activities.mcp.results import make_result_text
from clew_activities.mcp.settings import McpSettings
from clew_activities.providers import Redaction
from clew_workflows.core.argument_schemas import make_validator

if TYPE_CHECKING:
    from clew_activities.mcp.connection import McpServer

log = logging.getLogger("clew.worker")

_REMEDY = "the server is one of the file that CLEW_MCP names, and the tool one of the server's"


class McpTool(ToolDefinition):
    """A tool of an MCP server.

    Attributes:
        server: The name of the server.
        tool: The name that the server has for the tool.
    """

    def __init__(self, server: str, listed: Mapping[str, Any], timeout_seconds: float) -> None:
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


class McpTools:
    """The tools of all servers of a worker. Connections are made when they are needed, and kept."""

    def __init__(self, settings: McpSettings | None = None, redaction: Redaction | None = None) -> None:
        self._settings = settings or McpSettings()
        self._redaction = redaction or Redaction()
        self._servers: dict[str, McpServer] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers."""
        return tuple(self._settings.servers)

    async def select(self, configured: str) -> tuple[McpTool, ...]:
        """Find the tools that a name `mcp:<server>/<tool>` or `mcp:<server>/*` means.

        Raises:
            McpUnavailable: The server cannot be used at present; the message names it.
            UnknownMcpTool: There is no such server or tool, or its schema cannot be used.
        """
        server, tool = split_configured_name(configured) or ("", "")
        tools, problems = await self._list_tools(server, configured)
        if tool == ALL_TOOLS:
            for name, problem in problems.items():
                log.warning("tool %r of MCP server %r is left out: %s", name, server, problem)
            return tuple(tools.values())
        if tool in problems:
            raise UnknownMcpTool(f"the tool {configured!r} cannot be used: {problems[tool]}")
        if tool not in tools:
            raise UnknownMcpTool(f"the worker has no tool {configured!r}: {_REMEDY}")
        return (tools[tool],)

    async def select_all(self, names: Iterable[str]) -> dict[str, tuple[McpTool, ...]]:
        """Find the tools of all names that mean tools of MCP servers, by these names; raises as `select` does."""
        configured = [name for name in dict.fromkeys(names) if split_configured_name(name)]
        return dict(zip(configured, await asyncio.gather(*map(self.select, configured)), strict=True))

    async def find(self, tool_name: str) -> McpTool | None:
        """Find the tool that models call `tool_name`; None: it is none of an MCP server of the worker, or gone.

        Raises:
            McpUnavailable: The server cannot be used at present; the message names it.
        """
        server = find_server(tool_name)
        if server is None or server not in self._settings.servers:
            return None
        tools, _ = await self._list_tools(server, tool_name)
        return next((tool for tool in tools.values() if tool.name == tool_name), None)

    async def call(self, tool: McpTool, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Call a tool. Returns the text of the result, and whether it is an error.

        Raises:
            McpUnavailable: The server cannot be used, or the connection broke during the call.
        """
        try:
            result = await self._get_server(tool.server).call_tool(tool.tool, arguments)
        except McpUnavailable as error:
            raise self._name(tool.server, error) from None
        text = make_result_text(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return self._redaction.redact_text(text), bool(result.is_error)

    async def close(self) -> None:
        """End all connections, and with them the servers' processes."""
        for server in self._servers.values():
            await server.close()

    async def _list_tools(self, server: str, wanted: str) -> tuple[dict[str, McpTool], dict[str, str]]:
        """List a server's tools, and the problems of those that sessions cannot have, by the server's names."""
        if server not in self._settings.servers:
            raise UnknownMcpTool(f"the worker has no tool {wanted!r}: {_REMEDY}")
        try:
            listed = await self._get_server(server).list_tools()
        except McpUnavailable as error:
            raise self._name(server, error) from None
        tools: dict[str, McpTool] = {}
        problems: dict[str, str] = {}
        timeout_seconds = self._settings.servers[server].timeout_seconds
        for entry in listed:
            try:
                fields = entry.model_dump(mode="json", by_alias=True, exclude_none=True)
                tools[entry.name] = McpTool(server, fields, timeout_seconds)
            except (TypeError, ValueError, RecursionError) as error:
                problems[entry.name] = str(error)[:500]
        return tools, problems

    def _get_server(self, name: str) -> McpServer:
        if name not in self._servers:
            # Only a worker that has servers needs the package `mcp`.
            from clew_activities.mcp.connection import McpServer  # noqa: PLC0415

            self._servers[name] = McpServer(name, self._settings.servers[name])
        return self._servers[name]

    def _name(self, server: str, error: McpUnavailable) -> McpUnavailable:
        return McpUnavailable(self._redaction.redact_text(f"the MCP server {server!r} cannot be used: {error}"))
