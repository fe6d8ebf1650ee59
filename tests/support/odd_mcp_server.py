"""An MCP server at a URL on loopback, whose answers a test writes: of the older protocols, or of 2026-07-28 alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request, validate_mcp_param_headers
from starlette.routing import Route

from clew_activities.tools.mcp.mcp_settings import HttpSettings, McpSettings
from clew_activities.tools.mcp.mcp_tools import McpTools
from tests.support.web import serve

OLD, NEW = "2025-11-25", "2026-07-28"
_COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def make_tool(name: str, **fields: Any) -> dict[str, Any]:
    """Make a tool as a server lists it."""
    return {"name": name, "inputSchema": {"type": "object"}} | fields


@dataclass
class OddServer:
    """The answers of a server.

    Attributes:
        version: The only version of the protocol that it speaks.
        list_page: Makes the result of `tools/list` for a cursor, which it may refuse with `Refusal`.
        call: Makes the result of `tools/call`.
        sessions: The MCP sessions that are open. One that a test takes out has ended.
        ended: The response for a request of a session that has ended.
        methods: The methods of the requests that it was sent, in their order.
    """

    version: str = OLD
    list_page: Callable[[Any], Any] = lambda _: {"tools": [make_tool("one")]}
    call: Callable[[dict[str, Any]], Any] = lambda _: {"content": [{"type": "text", "text": "done"}]}
    sessions: set[str] = field(default_factory=set)
    ended: Callable[[], Response] = lambda: Response(status_code=404)
    methods: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        """Answer a request of a client."""
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        self.methods.append(message["method"])
        if self.version == NEW and (refused := self._refuse(message, request.headers)):
            return refused
        session = request.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            return self.ended()
        if "id" not in message:
            return Response(status_code=202)
        try:
            result, headers = self._find_result(message)
        except Refusal as refusal:
            return make_error(message["id"], refusal.code, str(refusal), 200)
        if self.version == NEW and isinstance(result, dict):
            result = _COMPLETE | result
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    def _find_result(self, message: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
        params = message.get("params", {})
        match message["method"]:
            case "initialize" if self.version == OLD:
                session = f"s-{len(self.methods)}"
                self.sessions.add(session)
                info = {"name": "odd", "version": "1"}
                result = {"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": info}
                return result, {"mcp-session-id": session}
            case "server/discover" if self.version == NEW:
                return {"supportedVersions": [NEW], "capabilities": {"tools": {}}}, {}
            case "tools/list":
                return self.list_page(params.get("cursor")), {}
            case "tools/call":
                return self.call(params), {}
        raise Refusal(types.METHOD_NOT_FOUND, "no such method")

    def _refuse(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Response | None:
        """Refuse a request whose headers are not those of the protocol, as the official server does."""
        if "mcp-method" not in headers:
            return make_error(message.get("id"), types.HEADER_MISMATCH, "the header Mcp-Method is missing", 400)
        found = classify_inbound_request(message, headers=headers)
        if not isinstance(found, InboundLadderRejection) and message["method"] == "tools/call":
            name = message["params"]["name"]
            listed = [tool for tool in self.list_page(None)["tools"] if isinstance(tool, dict)]
            schema = next(tool["inputSchema"] for tool in listed if tool.get("name") == name)
            refused = validate_mcp_param_headers(schema, message["params"].get("arguments") or {}, headers)
            return make_error(message["id"], refused.code, refused.message, 400) if refused else None
        if isinstance(found, InboundLadderRejection):
            return make_error(message.get("id"), found.code, found.message, 400)
        return None


class Refusal(Exception):
    """The server answers a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def make_error(request_id: Any, code: int, message: str, status: int) -> Response:
    """Make the response that has an error of JSON-RPC."""
    error = {"code": code, "message": message}
    return JSONResponse({"jsonrpc": "2.0", "id": request_id, "error": error}, status)


@asynccontextmanager
async def use_server(server: OddServer) -> AsyncIterator[McpTools]:
    """Serve it. Yields the tools of a worker that has it as `odd`."""
    app = FastAPI(routes=[Route("/mcp", server.answer, methods=["POST", "GET", "DELETE"])])
    async with serve(app) as address:
        tools = McpTools(McpSettings({"odd": HttpSettings(url=f"http://{address}/mcp")}))
        try:
            yield tools
        finally:
            await tools.close()
