"""The tools of a worker's MCP servers: those that configurations mean, the calls, and the texts of results.

This module works without the package `mcp`: lists and results come as JSON.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pydantic_core import from_json, to_json

from clew.content import clean_name
from clew.tools.definition import ToolDefinition, make_spec
from clew_activities.file_types import find_encoding, find_type
from clew_activities.providers import Redaction
from clew_activities.received_media import NewMedia, Unusable, decode_base64
from clew_activities.tools.mcp.input_schemas import simplify_schema
from clew_activities.tools.mcp.mcp_settings import McpSettings, McpUnavailable, find_missing_program
from clew_activities.tools.result_parts import Piece
from clew_workflows.contract.content import is_text_type
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.names import ALL_TOOLS, find_server, make_tool_name, split_configured_name
from clew_workflows.session.tool_rounds import make_validator

if TYPE_CHECKING:
    from clew_activities.tools.mcp.mcp_connection import Listing, McpServer

log = logging.getLogger("clew.worker")

LOOK_SECONDS = 5.0
"""Seconds that a model call waits for a server to list its tools. After them the list known before stands."""
MAX_WARNINGS = 20
"""Most lines in the log about one list of a server."""
_REMEDY = "the server is one of the file that CLEW_MCP names, and the tool one of the server's"
_VERSION_CHARACTERS = 16


class UnknownMcpTool(Exception):
    """The worker's servers have no tool of a name. The message names it and says what to do."""


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
        self._known: dict[str, tuple[Listing, Catalog]] = {}
        self._looking: dict[str, asyncio.Task[Catalog]] = {}
        for name, server in self._settings.servers.items():
            if (problem := find_missing_program(server)) is not None:
                log.warning("MCP server %r cannot be started: %s", name, self._redaction.redact_text(problem))

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
        """Find the version of a server's catalog, if the worker knows it.

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
    ) -> tuple[str | list[Piece], bool]:
        """Call a tool. Returns the text of the result, or its pieces if it has media, and whether it is an error.

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
        fields = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        is_error = bool(result.is_error)
        # An image of a few megabytes takes milliseconds to decode.
        pieces = None if is_error else await asyncio.to_thread(make_result_pieces, fields)
        if pieces is None:
            return self._redaction.redact_text(make_result_text(fields)), is_error
        return await asyncio.to_thread(lambda: [self._redact_piece(piece) for piece in pieces]), False

    def _redact_piece(self, piece: Piece) -> Piece:
        match piece:
            case str():
                return self._redaction.redact_text(piece)
            case NewMedia(data=data, name=name):
                name = name if name is None else self._redaction.redact_text(name)
                if encoding := find_encoding(data):
                    text = data.decode(encoding)
                    if (redacted := self._redaction.redact_text(text)) != text:
                        data = redacted.encode(encoding, "replace")
                return replace(piece, data=data, name=clean_name(name) if name else None)
            case Unusable(reason=reason):
                return replace(piece, reason=self._redaction.redact_text(reason))
        return piece

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
            timeout_seconds = self._settings.servers[server].timeout_seconds
            catalog = make_catalog(server, listed.tools.values(), timeout_seconds, listed.problems)
            left_out = [f"tool {name!r} is left out: {problem}" for name, problem in catalog.problems.items()]
            self._warn(server, (*left_out, *listed.ignored))
            known = self._known[server] = (listed, catalog)
        return known[1]

    def _warn(self, server: str, texts: Sequence[str]) -> None:
        """Log what of a server's list is left out."""
        for text in texts[:MAX_WARNINGS]:
            log.warning("MCP server %r: %s", server, self._redaction.redact_text(text))
        if len(texts) > MAX_WARNINGS:
            log.warning("MCP server %r: %d further tools or fields are left out", server, len(texts) - MAX_WARNINGS)

    def _get_server(self, name: str) -> McpServer:
        if name not in self._servers:
            # Only a worker that has servers needs the package `mcp`.
            from clew_activities.tools.mcp.mcp_connection import McpServer  # noqa: PLC0415

            self._servers[name] = McpServer(name, self._settings.servers[name], self._redaction)
        return self._servers[name]

    def _name(self, server: str, error: McpUnavailable) -> McpUnavailable:
        named = f"the MCP server {server!r} cannot be used: {error}"
        return type(error)(self._redaction.redact_text(named))


def _pick(configured: str, catalog: Catalog, tool: str) -> tuple[McpTool, ...]:
    if tool == ALL_TOOLS:
        return tuple(catalog.tools.values())
    if tool in catalog.problems:
        raise UnknownMcpTool(f"the tool {configured!r} cannot be used: {catalog.problems[tool]}")
    if tool not in catalog.tools:
        raise UnknownMcpTool(f"the worker has no tool {configured!r}: {_REMEDY}")
    return (catalog.tools[tool],)


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
            make_spec(
                make_tool_name(server, self.tool),
                listed.get("description") or "",
                simplify_schema(listed["inputSchema"]),
            ),
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
        version: A digest of the tools, with their schemas and settings, in any order.
    """

    tools: Mapping[str, McpTool]
    problems: Mapping[str, str]
    version: str

    def find(self, tool_name: str) -> McpTool | None:
        """Find the tool that models call `tool_name`."""
        return next((tool for tool in self.tools.values() if tool.name == tool_name), None)


def make_catalog(
    server: str,
    listed: Iterable[Mapping[str, Any]],
    timeout_seconds: float,
    unusable: Mapping[str, str] = MappingProxyType({}),
) -> Catalog:
    """Make the catalog of a server from its list of tools, each as JSON, and the problems of others."""
    tools: dict[str, McpTool] = {}
    problems = dict(unusable)
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


def make_result_text(result: Mapping[str, Any]) -> str:
    """Make the text of a `CallToolResult`: its texts, descriptions of other content, and structured content as JSON.

    Structured content that the texts say already is left out.
    """
    content = result.get("content") or []
    parts = list(_describe_parts(content))
    structured = result.get("structuredContent")
    texts = [part["text"] for part in content if part.get("type") == "text"]
    if structured is not None and not _have_content(texts, structured):
        parts.append(to_json(structured).decode())
    return "\n".join(parts)


def make_result_pieces(result: Mapping[str, Any]) -> list[Piece] | None:
    """Make the pieces of a `CallToolResult` with media: texts, images, recordings and embedded files, in order.

    None: it has no media. Links to resources stay texts. The type that the server declares is that of a text alone:
    what other bytes are, their beginning says.
    """
    content = result.get("content") or []
    if not any(_has_media(part) for part in content):
        return None
    pieces: list[Piece] = [
        _read_media(part) if _has_media(part) else "\n".join(_describe_parts([part])) for part in content
    ]
    structured = result.get("structuredContent")
    texts = [part["text"] for part in content if part.get("type") == "text"]
    if structured is not None and not _have_content(texts, structured):
        pieces.append(to_json(structured).decode())
    return pieces


def _has_media(part: Mapping[str, Any]) -> bool:
    is_file = part.get("type") == "resource" and "text" not in part["resource"]
    return is_file or part.get("type") in ("image", "audio")


def _read_media(part: Mapping[str, Any]) -> Piece:
    if part["type"] == "resource":
        resource = part["resource"]
        name = _find_name(str(resource.get("uri") or ""))
        piece = decode_base64("file", resource.get("blob"), _read_text_type(resource), name)
        if isinstance(piece, NewMedia):
            inspected = find_type(piece.data)
            kind = (inspected or "").partition("/")[0]
            return replace(
                piece,
                kind="image" if kind == "image" else "audio" if kind == "audio" else "file",
                media_type=None if inspected else piece.media_type,
            )
        return piece
    return decode_base64("image" if part["type"] == "image" else "audio", part.get("data"))


def _find_name(uri: str) -> str | None:
    """Find the name of a file in its URI; a server may write a URI that is none."""
    try:
        path = urlsplit(uri).path
    except ValueError:
        path = uri
    return clean_name(unquote(path))


def _read_text_type(part: Mapping[str, Any]) -> str | None:
    """Read the declared type of a text, which no first bytes tell; None: it is declared as something else."""
    declared = str(part.get("mimeType") or "").partition(";")[0].strip().lower()
    return declared if is_text_type(declared) and not declared.startswith("image/") else None


def _describe_parts(content: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for part in content:
        match part.get("type"):
            case "text":
                yield part["text"]
            case "resource" if "text" in part["resource"]:
                yield part["resource"]["text"]
            case "resource":
                resource = part["resource"]
                yield f"[resource {resource['uri']}: {_describe_data(resource, 'blob')}]"
            case "resource_link":
                yield f"[link to {part.get('title') or part.get('name') or 'a resource'}: {part['uri']}]"
            case kind:
                yield f"[{kind}: {_describe_data(part, 'data')}]"


def _describe_data(part: Mapping[str, Any], member: str) -> str:
    # Base64 has four characters for three bytes.
    size = len((part.get(member) or "").rstrip("=")) * 3 // 4
    return f"{part.get('mimeType') or 'unknown type'}, {size} bytes"


def _have_content(texts: list[str], structured: Any) -> bool:
    """Check whether texts are a form of the structured content. Python servers put values into `{"result": …}`."""
    values = [_parse(text) for text in texts]
    is_wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
    forms = [structured, *([structured["result"]] if is_wrapped else [])]
    return any(form in values or form in texts or form in (values, texts) for form in forms)


def _parse(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text
