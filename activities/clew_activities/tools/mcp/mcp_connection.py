"""The connection to one MCP server: made when it is needed, and again after it has broken or hangs.

Servers that a worker starts are asked in the order of the older protocols, since one of them may end at a request
before `initialize`. Servers at URLs are asked as the official client does, with `server/discover` first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from clew_activities.providers import Redaction
from clew_activities.tools.mcp.mcp_settings import HttpSettings, McpRefused, McpUnavailable, ServerSettings
from clew_activities.tools.mcp.server_answers import ToolsPage, make_tools_result, mend_result, read_tools
from clew_activities.tools.mcp.transports import (
    SESSION_ENDED,
    ServerProcess,
    open_http_streams,
    run_server_process,
)

CONNECT_SECONDS = 10.0
"""Seconds that a server has to start and to answer the handshake, and again to list its tools."""
PROBE_SECONDS = 3.0
"""Seconds that a server at a URL has to answer `server/discover`, before the older protocols are tried."""
LIST_SECONDS = 8.0
"""Seconds after which a list that has begun ends with the pages that were read."""
MAX_TOOLS = 1000
"""Most tools of a server. Those after them are left out."""
MAX_IDLE_PAGES = 100
"""Most pages in a row without a tool that the pages before do not have."""
FIRST_PAUSE_SECONDS = 0.1
"""Seconds before the second try to connect; each further pause is twice as long."""
LONGEST_PAUSE_SECONDS = 5.0
"""Longest of these pauses, in seconds."""
PING_SECONDS = 5.0
"""Seconds that a server which left a call unanswered has to answer a ping, before the next call uses it."""
MAX_UNANSWERED = 3
"""Most calls in a row that a server may leave unanswered, although it answers pings."""
LIST_LIFE_SECONDS = 5.0
"""Seconds for which a list is kept that may change without a message: of a server at a URL, or of 2026 and later."""

READ_RESOURCE = "read_resource"
"""The tool that reads a server's resources: results may link to them."""
ReportProgress = Callable[[str, float | None], None]
"""Takes the text of a progress report, and the fraction that is done, where the server says it."""

_RESOURCE_TOOL: Mapping[str, Any] = {
    "name": READ_RESOURCE,
    "description": "Read a resource of this server by its URI, as results link to it.",
    "inputSchema": {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    "annotations": {"readOnlyHint": True},
}

log = logging.getLogger("clew.worker")

_REFUSED = (types.INVALID_PARAMS, types.INVALID_REQUEST, types.INTERNAL_ERROR)
_FINAL = (types.INVALID_PARAMS, types.METHOD_NOT_FOUND)


class _SessionEnded(McpUnavailable):
    """The server has no such MCP session any more: it has refused the request, and run nothing."""


@dataclass
class Listing:
    """The tools that a server lists.

    Attributes:
        tools: The tools, as JSON, by name.
        problems: Why others are left out, by name.
        ignored: What else of the list is left out, described.
    """

    tools: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def add(self, page: ToolsPage) -> bool:
        """Add a page. Returns whether it has tools that the pages before do not have."""
        before = len(self.tools), len(self.problems)
        for tool in page.tools:
            name = tool["name"]
            if name not in self.tools and len(self.tools) >= MAX_TOOLS:
                self.problems[name] = f"the server has over {MAX_TOOLS} tools"
            elif self.tools.setdefault(name, tool) != tool:
                self._ignore(f"another tool {name[:100]!r} is left out")
        for text in page.ignored:
            self._ignore(text)
        for name, problem in page.problems.items():
            self.problems.setdefault(name, problem)
        return before != (len(self.tools), len(self.problems))

    def _ignore(self, text: str) -> None:
        if text not in self.ignored and len(self.ignored) < MAX_TOOLS:
            self.ignored.append(text)


class _Dispatcher(JSONRPCDispatcher[Any]):
    """Sends requests, and makes their results valid for the session.

    Attributes:
        page: The newest page of a list of tools.
        cursor: What asks for the page that is listed next, in the type that the server has sent.
    """

    page: ToolsPage | None = None
    cursor: Any = None

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **more: Any
    ) -> dict[str, Any]:
        """Send a request. Returns its result, without what cannot be used."""
        headers = opts.get("headers", {}) if opts else {}
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, LATEST_HANDSHAKE_VERSION)
        if method == "tools/list" and params and params.get("cursor") is not None:
            params = {**params, "cursor": self.cursor}
        result = await super().send_raw_request(method, params, opts, **more)
        if method == "tools/list":
            self.page = read_tools(result, version)
            return make_tools_result(self.page)
        return mend_result(method, result, version)


class _Session(ClientSession):
    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Take every result: the model reads it as it is, and the server's schema may take without end."""


class McpConnection:
    """One connection, in a task of its own. `close` ends it, and with it the server's process."""

    def __init__(self, name: str, settings: ServerSettings, redaction: Redaction) -> None:
        self._name = name
        self._settings = settings
        self._redaction = redaction
        self._stop = asyncio.Event()
        self._process: ServerProcess | None = None
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._calls = 0
        self._unanswered = 0
        self._reads_resources = False
        self._broken = False
        self._dispatcher: _Dispatcher | None = None
        self._tools: Listing | None = None
        self._listed_at = 0.0
        self._changed = False
        self._is_partial = False
        self._listing = asyncio.Lock()
        self._task = asyncio.create_task(self._run())

    @property
    def is_broken(self) -> bool:
        """Whether no further call may use it."""
        return self._broken or (self._process is not None and self._process.ended.is_set())

    async def wait_until_ready(self) -> None:
        """Wait until the handshake is done.

        Raises:
            McpUnavailable: It failed.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.shield(self._session)
        except TimeoutError:
            raise self._break(f"it has not answered within {CONNECT_SECONDS:g} seconds") from None

    async def check(self) -> None:
        """Check that the server still answers, if it has left a call unanswered; otherwise the connection is broken.

        A call is unanswered if its time ended first, or its caller's. The server may be at work on it, or hang.
        """
        if not self._unanswered or self.is_broken:
            return
        if self._unanswered >= MAX_UNANSWERED:
            self._break(f"it has left {self._unanswered} calls in a row unanswered")
            return
        session = self._session.result()
        try:
            async with asyncio.timeout(PING_SECONDS):
                # Servers of 2026 and later know no ping.
                if session.discover_result is None:
                    await session.send_ping()
                else:
                    await session.send_discover(str(session.protocol_version))
        except TimeoutError:
            self._break(f"it has left a call unanswered, and then a ping for {PING_SECONDS:g} seconds")
        except MCPError as error:
            self._take_error(error)
        except ValueError:
            log.debug("MCP server %r answers a ping in a form of its own", self._name)

    async def list_tools(self) -> Listing:
        """List the server's tools. The list is kept until the server says that it has changed.

        That of a server which does not say it is kept for `LIST_LIFE_SECONDS`: of one at a URL, or of 2026 and later.

        Raises:
            McpUnavailable: The server does not answer, or breaks the protocol.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS), self._listing:
                if self._tools is None or self._is_stale():
                    # A change during the listing makes the next one list again.
                    self._changed, listed_at = False, time.monotonic()
                    async with self._use() as session:
                        self._tools = await self._list_all(session)
                    self._listed_at = listed_at
                return self._tools
        except TimeoutError:
            raise self._break(f"it has not listed its tools within {CONNECT_SECONDS:g} seconds") from None

    async def call_tool(
        self, name: str, arguments: dict[str, Any], report: ReportProgress | None = None
    ) -> types.CallToolResult:
        """Call a tool. `report` is called with its progress.

        Raises:
            McpUnavailable: The connection broke, or the server broke the protocol. The call may have taken effect.
                Its subclass `_SessionEnded`: the call has not run.
        """
        if self._tools is None:
            # Its schema names the headers of a call, and whether the server has a tool that reads resources.
            await self.list_tools()
        progress = None if report is None else _make_callback(report)
        async with self._use() as session:
            if name == READ_RESOURCE and self._reads_resources:
                return await _read_resource(session, str(arguments["uri"]))
            try:
                return await session.call_tool(name, arguments, progress_callback=progress)
            except MCPError as error:
                if error.code != types.HEADER_MISMATCH:
                    raise
            # The server has refused the call: the headers that it wants have changed.
            await self._list_pages(session, Listing())
            return await session.call_tool(name, arguments, progress_callback=progress)

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left of it."""
        return self._task.done()

    def end_with_calls(self) -> None:
        """End the connection when its last call has ended."""
        if not self._calls:
            self._stop.set()

    async def close(self) -> None:
        """End the connection."""
        self._broken = True
        self._stop.set()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[ClientSession]:
        """Lend the session to one call. A broken connection ends with the last of its calls."""
        session = await asyncio.shield(self._session)
        self._calls += 1
        try:
            yield session
            self._unanswered = 0
        except asyncio.CancelledError:
            self._unanswered += 1
            raise
        except MCPError as error:
            self._unanswered = 0
            raise self._take_error(error) from None
        except (McpUnavailable, TimeoutError):
            raise
        except Exception as error:
            # A result of another form than the protocol's, for one.
            raise McpUnavailable(self._describe(error)) from None
        finally:
            self._calls -= 1
            if self.is_broken:
                self.end_with_calls()

    def _take_error(self, error: MCPError) -> McpUnavailable:
        """Take an error instead of a result. That of a server at a URL may be its transport's."""
        if self._process is None and error.code == SESSION_ENDED:
            self._break("its session has ended")
            return _SessionEnded("its session has ended")
        if self._process is None and error.code not in _FINAL:
            return self._break(self._describe(error))
        return McpRefused(self._describe(error))

    async def _run(self) -> None:
        problem: BaseException | None = None
        try:
            if isinstance(self._settings, HttpSettings):
                async with open_http_streams(self._settings) as (received, sent):
                    await self._serve(received, sent)
            else:
                async with run_server_process(self._settings) as (self._process, (received, sent)):
                    await self._serve(received, sent)
        except BaseException as error:
            problem = error
        finally:
            self._break(self._describe(problem))
            if not self._session.done():
                self._session.set_exception(McpUnavailable(self._describe(problem)))
                # The caller may no longer wait for it.
                self._session.exception()

    async def _serve(self, received: Any, sent: Any) -> None:
        self._dispatcher = _Dispatcher(received, sent)
        async with _Session(dispatcher=self._dispatcher, message_handler=self._take_message) as session:
            if self._process is None:
                await _discover_or_initialize(session)
            else:
                await _initialize_or_discover(session)
            self._session.set_result(session)
            ends = [asyncio.create_task(self._stop.wait())]
            if self._process is not None:
                ends.append(asyncio.create_task(self._process.ended.wait()))
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if self._process is not None and self._process.problem:
                    self._break(self._process.problem)
                self._broken = True
                for end in ends:
                    end.cancel()

    async def _take_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed = True

    async def _list_all(self, session: ClientSession) -> Listing:
        """List the server's tools, and one that reads its resources, if it has some and no tool of that name.

        A list that ends too early keeps the tools that were known before, and is read again after a while.
        """
        listing = Listing()
        problem = await self._list_pages(session, listing)
        self._is_partial = problem is not None
        if problem is not None:
            listing.ignored.append(problem)
            for name, tool in self._tools.tools.items() if self._tools else ():
                listing.tools.setdefault(name, tool)
        capabilities = session.server_capabilities
        has_resources = capabilities is not None and capabilities.resources is not None
        self._reads_resources = has_resources and listing.tools.get(READ_RESOURCE) in (None, _RESOURCE_TOOL)
        if self._reads_resources:
            listing.tools[READ_RESOURCE] = _RESOURCE_TOOL
        return listing

    async def _list_pages(self, session: ClientSession, listing: Listing) -> str | None:
        """Read the pages of a list until it ends. Returns why pages are missing; None: it has ended.

        A cursor is any JSON value but null. The list ends as well when a cursor comes back, or after many pages that
        bring nothing new: no server makes it endless.

        Raises:
            MCPError: The first page cannot be read, or the connection has ended.
            McpUnavailable: The first page has no list.
        """
        seen: set[str] = set()
        idle = 0
        page = await self._read_page(session, None)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                while True:
                    idle = 0 if listing.add(page) else idle + 1
                    mark = json.dumps(page.cursor, sort_keys=True)
                    if page.cursor is None or mark in seen or len(listing.problems) > MAX_TOOLS:
                        return None
                    if idle >= MAX_IDLE_PAGES:
                        listing.ignored.append(f"its list goes on after {idle} pages without a further tool")
                        return None
                    seen.add(mark)
                    page = await self._read_page(session, page.cursor)
        except TimeoutError:
            return f"pages of its list are missing: after {LIST_SECONDS:g} seconds it has not ended"
        except (MCPError, McpUnavailable) as error:
            code = error.code if isinstance(error, MCPError) else None
            if self.is_broken or code in (SESSION_ENDED, types.CONNECTION_CLOSED):
                raise
            if page.cursor == "":
                # Some servers write an empty text for no cursor, and refuse it.
                return None
            return f"pages of its list are missing: {self._describe(error)}"

    async def _read_page(self, session: ClientSession, cursor: Any) -> ToolsPage:
        """Read a page of the list of tools. A cursor of another type than the protocol's is sent as text, if refused.

        Raises:
            MCPError: The server refuses the request.
            McpUnavailable: The page has no list.
        """
        dispatcher = self._dispatcher
        assert dispatcher is not None, "the session has been opened"
        dispatcher.cursor = cursor
        params = types.PaginatedRequestParams(cursor=None if cursor is None else "next")
        try:
            await session.list_tools(params=params)
        except MCPError as error:
            if cursor is None or isinstance(cursor, str) or error.code not in _REFUSED:
                raise
            dispatcher.cursor = json.dumps(cursor)
            await session.list_tools(params=params)
        page = dispatcher.page
        assert page is not None, "a page has been read"
        return page

    def _is_stale(self) -> bool:
        is_old = time.monotonic() > self._listed_at + LIST_LIFE_SECONDS
        is_told = self._process is not None and self._session.result().discover_result is None
        return self._changed or (is_old and (self._is_partial or not is_told))

    def _break(self, problem: str) -> McpUnavailable:
        """Note that no further call may use the connection, and log why, once. Returns the error to raise."""
        if not self._broken:
            self._broken = True
            log.warning("MCP server %r cannot be used: %s", self._name, self._redaction.redact_text(problem))
        return McpUnavailable(problem)

    def _describe(self, error: BaseException | None) -> str:
        """Describe why the server cannot be used, in one sentence without its end."""
        if self._process is not None and self._process.problem:
            # Once it serves, its log has more to say than one line.
            said = "" if self._session.done() else self._process.describe_errors()
            return f"{self._process.problem}: {said}" if said else self._process.problem
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None or isinstance(error, asyncio.CancelledError):
            return "the connection was closed"
        return f"{type(error).__name__}: {str(error)[:300]}"


async def _discover_or_initialize(session: ClientSession) -> None:
    """Agree with a server at a URL on the protocol's version: those of 2026 and later first, then the older ones.

    Raises:
        MCPError: The server knows neither, or only versions that this client does not know.
    """
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await session.discover()
        return
    except MCPError as error:
        supported = error.data.get("supported") if isinstance(error.data, dict) else None
        if (
            error.code == types.UNSUPPORTED_PROTOCOL_VERSION
            and isinstance(supported, list)
            and not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported)
        ):
            raise
    except (TimeoutError, ValidationError, RuntimeError):
        # Slow, no answer to this request, or one that names older versions alone.
        pass
    try:
        await session.initialize()
    except MCPError as error:
        if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        # It was slow to start.
        await session.discover()


async def _initialize_or_discover(session: ClientSession) -> None:
    """Agree with a server that the worker has started: the older versions first, then those of 2026 and later.

    Raises:
        MCPError: The server knows neither.
    """
    try:
        await session.initialize()
    except MCPError as error:
        try:
            await session.discover()
        except MCPError as other:
            raise (error if other.code == types.METHOD_NOT_FOUND else other) from None


async def _read_resource(session: ClientSession, uri: str) -> types.CallToolResult:
    read = await session.read_resource(uri)
    content = [types.EmbeddedResource(type="resource", resource=part) for part in read.contents]
    return types.CallToolResult(content=[*content])


def _make_callback(report: ReportProgress) -> ProgressFnT:
    async def take(progress: float, total: float | None, message: str | None) -> None:
        text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        report(text, progress / total if total else None)

    return take


class McpServer:
    """A server that the worker may use: at most one connection at a time, with pauses between failed ones.

    Attributes:
        name: The server's name.
        settings: How the server is reached.
    """

    def __init__(self, name: str, settings: ServerSettings, redaction: Redaction) -> None:
        self.name = name
        self.settings = settings
        self._redaction = redaction
        self._connection: McpConnection | None = None
        self._broken: list[McpConnection] = []
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._tried_at = 0.0

    async def list_tools(self) -> Listing:
        """List the server's tools.

        Raises:
            McpUnavailable: The server cannot be reached, or does not answer in time.
        """
        connection = await self._connect()
        try:
            return await connection.list_tools()
        except McpUnavailable:
            if not connection.is_broken:
                raise
        # The server may have restarted since the connection was used last.
        return await (await self._connect()).list_tools()

    async def call_tool(
        self, name: str, arguments: dict[str, Any], report: ReportProgress | None = None
    ) -> types.CallToolResult:
        """Call a tool. `report` is called with its progress.

        Raises:
            McpUnavailable: The server cannot be reached, or the connection broke during the call.
        """
        try:
            result = await (await self._connect()).call_tool(name, arguments, report)
        except _SessionEnded:
            # It has not run: another session begins.
            result = await (await self._connect()).call_tool(name, arguments, report)
        self._failures = 0
        return result

    async def close(self) -> None:
        """End the connection, and with it the server's process."""
        connections = (*self._broken, *([self._connection] if self._connection else []))
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _connect(self) -> McpConnection:
        async with self._connecting:
            if self._connection is not None:
                await self._connection.check()
                if not self._connection.is_broken:
                    return self._connection
            self._broken = [broken for broken in self._broken if not broken.has_ended]
            if self._connection is not None:
                # Other calls may still wait for its answers, and its process may take its time to end.
                self._broken.append(self._connection)
                self._connection.end_with_calls()
                self._connection = None
            # It counts as a failure until a call has succeeded: a server may die of each call.
            if self._failures:
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(max(0.0, self._tried_at + pause - time.monotonic()))
            self._failures = min(self._failures + 1, 20)
            connection = McpConnection(self.name, self.settings, self._redaction)
            try:
                await connection.wait_until_ready()
            except BaseException:
                await connection.close()
                raise
            finally:
                self._tried_at = time.monotonic()
            self._connection = connection
            return connection
