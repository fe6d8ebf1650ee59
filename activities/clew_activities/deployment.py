"""The deployment of a worker, as a session sees it: what is registered, and the lists of its MCP servers.

A session keeps it as text, `<digest>/<server>:<version>/…`, with the servers that it has tools of. So a change of a
server reaches only the sessions that use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from clew_activities.tools.mcp.tools import McpTools


class Deployment:
    """The digest of a worker's registry, and its MCP servers."""

    def __init__(self, digest: str, mcp_tools: McpTools) -> None:
        self._digest = digest
        self._mcp_tools = mcp_tools

    def describe(self, versions: Mapping[str, str]) -> str:
        """Describe the deployment to a session with tools of these versions of MCP servers' catalogs."""
        return "/".join((self._digest, *(f"{server}:{versions[server]}" for server in sorted(versions))))

    async def describe_again(self, described: str) -> str:
        """Describe this worker's deployment to a session that was prepared under another, or the same.

        A server whose tools this worker does not know changes nothing.
        """
        _, *parts = described.split("/")
        before = {server: version for server, _, version in (part.partition(":") for part in parts)}
        servers = [server for server in before if self._mcp_tools.has_server(server)]
        versions = await asyncio.gather(*map(self._mcp_tools.find_version, servers))
        return self.describe(
            {server: version or before[server] for server, version in zip(servers, versions, strict=True)}
        )
