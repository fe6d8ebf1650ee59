"""The MCP servers of a worker: the tools that configurations mean, the calls, and the servers' last catalogs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew_activities.providers import Redaction
from clew_activities.tools.mcp.catalog import Catalog, McpTool, make_catalog
from clew_activities.tools.mcp.errors import McpUnavailable, UnknownMcpTool
from clew_activities.tools.mcp.results import make_result_text
from clew_activities.tools.mcp.settings import McpSettings
from clew_workflows.contract.names import ALL_TOOLS, find_server, split_configured_name

if TYPE_CHECKING:
    import mcp_types

    from clew_activities.tools.mcp.connection import McpServer

log = logging.getLogger("clew.worker")

LOOK_SECONDS = 5.0
"""Seconds that a model call waits for a server to list its tools. After them the list known before stands."""
_REMEDY = "the server is one of the file that CLEW_MCP names, and the tool one of the server's"


@dataclass(frozen=True)
class Selection:
    """The tools that names in a configuration mean.

    Attributes:
        tools: The tools by the names that mean tools of MCP servers.
        versions: The versions of the catalogs that they come from, by the servers' names.
    """

    tools: Mapping[str, tuple[McpTool, ...]]
    versions: Mapping[str, str]


class McpTools:
    """The tools of all servers of a worker. Connections are made when they are needed, and kept."""

    def __init__(self, settings: McpSettings | None = None, redaction: Redaction | None = None) -> None:
        self._settings = settings or McpSettings()
        self._redaction = redaction or Redaction()
        self._servers: dict[str, McpServer] = {}
        self._known: dict[str, tuple[tuple[mcp_types.Tool, ...], Catalog]] = {}
        self._looking: dict[str, asyncio.Task[Catalog]] = {}

    async def select(self, configured: str) -> tuple[McpTool, ...]:
        """Find the tools that a name `mcp:<server>/<tool>` or `mcp:<server>/*` means; raises as `select_all` does."""
        return (await self.select_all([configured])).tools[configured]

    async def select_all(self, names: Iterable[str]) -> Selection:
        """Find the tools of all names that mean tools of MCP servers. If a server is down, its last list is used.

        Raises:
            McpUnavailable: A server cannot be used, and has never listed its tools; the message names it.
            UnknownMcpTool: There is no such server or tool, or its schema cannot be used.
        """
        wanted = {name: split for name in names if (split := split_configured_name(name))}
        for name, (server, _) in wanted.items():
            if server not in self._settings.servers:
                raise UnknownMcpTool(f"the worker has no tool {name!r}: {_REMEDY}")
        servers = list({server: None for server, _ in wanted.values()})
        catalogs = dict(zip(servers, await asyncio.gather(*map(self._read_or_recall, servers)), strict=True))
        tools = {name: _pick(name, catalogs[server], tool) for name, (server, tool) in wanted.items()}
        return Selection(tools, {server: catalog.version for server, catalog in catalogs.items()})

    async def find_version(self, server: str) -> str | None:
        """Find the version of a server's catalog, as far as the worker knows it.

        None: it has no such server, or the server has never listed its tools. A server that is slow to list them is
        waited for no longer than `LOOK_SECONDS`, and goes on.
        """
        if server not in self._settings.servers:
            return None
        looking = self._looking.get(server)
        if looking is None or looking.done():
            looking = self._looking[server] = asyncio.create_task(self._read_or_recall(server))
        await asyncio.wait([looking], timeout=LOOK_SECONDS)
        if looking.done():
            # Retrieved, so that asyncio does not report it: `_break` has logged it.
            looking.exception()
        return self._known[server][1].version if server in self._known else None

    def has_server(self, name: str) -> bool:
        """Whether the worker may use a server."""
        return name in self._settings.servers

    async def find(self, tool_name: str) -> McpTool | None:
        """Find the tool that models call `tool_name`; None: no MCP server of the worker offers it any more.

        Raises:
            McpUnavailable: The server cannot be used at present; the message names it.
        """
        server = find_server(tool_name)
        if server is None or server not in self._settings.servers:
            return None
        return (await self._read_catalog(server)).find(tool_name)

    async def call(
        self, tool: McpTool, arguments: dict[str, Any], report: Callable[[str, float | None], None] | None = None
    ) -> tuple[str, bool]:
        """Call a tool. Returns the text of the result, and whether it is an error.

        `report` is called with the texts of progress, and the fractions that are done.

        Raises:
            McpUnavailable: The server cannot be used, or the connection broke during the call.
        """

        def report_redacted(text: str, fraction: float | None) -> None:
            if report is not None:
                report(self._redaction.redact_text(text), fraction)

        try:
            result = await self._get_server(tool.server).call_tool(tool.tool, arguments, report_redacted)
        except McpUnavailable as error:
            raise self._name(tool.server, error) from None
        text = make_result_text(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return self._redaction.redact_text(text), bool(result.is_error)

    async def close(self) -> None:
        """End all connections, and with them the servers' processes."""
        for looking in self._looking.values():
            looking.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)
        for server in self._servers.values():
            await server.close()

    async def _read_or_recall(self, server: str) -> Catalog:
        try:
            return await self._read_catalog(server)
        except McpUnavailable:
            if server not in self._known:
                raise
            return self._known[server][1]

    async def _read_catalog(self, server: str) -> Catalog:
        try:
            listed = await self._get_server(server).list_tools()
        except McpUnavailable as error:
            raise self._name(server, error) from None
        known = self._known.get(server)
        # Making a catalog takes time for each schema.
        if known is None or (known[0] is not listed and known[0] != listed):
            fields = [entry.model_dump(mode="json", by_alias=True, exclude_none=True) for entry in listed]
            catalog = make_catalog(server, fields, self._settings.servers[server].timeout_seconds)
            for name, problem in catalog.problems.items():
                log.warning("tool %r of MCP server %r is left out: %s", name, server, problem)
            known = self._known[server] = (listed, catalog)
        return known[1]

    def _get_server(self, name: str) -> McpServer:
        if name not in self._servers:
            # Only a worker that has servers needs the package `mcp`.
            from clew_activities.tools.mcp.connection import McpServer  # noqa: PLC0415

            self._servers[name] = McpServer(name, self._settings.servers[name], self._redaction)
        return self._servers[name]

    def _name(self, server: str, error: McpUnavailable) -> McpUnavailable:
        return McpUnavailable(self._redaction.redact_text(f"the MCP server {server!r} cannot be used: {error}"))


def _pick(configured: str, catalog: Catalog, tool: str) -> tuple[McpTool, ...]:
    if tool == ALL_TOOLS:
        return tuple(catalog.tools.values())
    if tool in catalog.problems:
        raise UnknownMcpTool(f"the tool {configured!r} cannot be used: {catalog.problems[tool]}")
    if tool not in catalog.tools:
        raise UnknownMcpTool(f"the worker has no tool {configured!r}: {_REMEDY}")
    return (catalog.tools[tool],)
