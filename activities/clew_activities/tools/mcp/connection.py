"""The connection to one MCP server: made when it is needed, and again after it has broken or hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import ProgressFnT

from clew_activities.providers import Redaction
from clew_activities.tools.mcp.settings import HttpSettings, McpUnavailable, ServerSettings
from clew_activities.tools.mcp.transports import ServerProcess, open_http_streams, run_server_process

CONNECT_SECONDS = 10.0
"""Seconds that a server has to start and to answer the handshake, and again to list its tools."""
MAX_TOOLS = 1000
"""Most tools of a server."""
FIRST_PAUSE_SECONDS = 0.1
"""Seconds before the second try to connect; each further pause is twice as long."""
LONGEST_PAUSE_SECONDS = 5.0
"""Longest of these pauses, in seconds."""
PING_SECONDS = 5.0
"""Seconds that a server which left a call unanswered has to answer a ping, before the next call uses it."""
MAX_UNANSWERED = 3
"""Most calls in a row that a server may leave unanswered, although it answers pings."""
HTTP_LIST_SECONDS = 5.0
"""Seconds for which the list of a server at a URL is kept. The worker does not notice that such a server restarts."""

READ_RESOURCE = "read_resource"
"""The tool that reads a server's resources: results may link to them."""
ReportProgress = Callable[[str, float | None], None]
"""Takes the text of a progress report, and the fraction that is done, where the server says it."""

_RESOURCE_TOOL = types.Tool(
    name=READ_RESOURCE,
    description="Read a resource of this server by its URI, as results link to it.",
    input_schema={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    annotations=types.ToolAnnotations(read_only_hint=True),
)

log = logging.getLogger("clew.worker")

_FINAL = (types.INVALID_PARAMS, types.METHOD_NOT_FOUND)


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
        self._tools: tuple[types.Tool, ...] | None = None
        self._listed_at = 0.0
        self._changed = False
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

    async def list_tools(self) -> tuple[types.Tool, ...]:
        """List the server's tools. The list is kept until the server says that it has changed.

        That of a server at a URL is kept for `HTTP_LIST_SECONDS`.

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
        """
        async with self._use() as session:
            if name == READ_RESOURCE and self._reads_resources:
                return await _read_resource(session, str(arguments["uri"]))
            progress = None if report is None else _make_callback(report)
            result = await session.call_tool(name, arguments, progress_callback=progress, allow_input_required=True)
        if isinstance(result, types.CallToolResult):
            return result
        raise McpUnavailable("its tool asks for input, which a session cannot give")

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
        if self._process is None and error.code not in _FINAL:
            return self._break(self._describe(error))
        return McpUnavailable(self._describe(error))

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
        async with _Session(received, sent, message_handler=self._take_message) as session:
            try:
                await session.initialize()
            except MCPError as error:
                if error.code not in (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION):
                    raise
                # Servers of 2026 and later may have no handshake.
                await session.discover()
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

    async def _list_all(self, session: ClientSession) -> tuple[types.Tool, ...]:
        """List the server's tools, and one that reads its resources, if it has some and no tool of that name."""
        tools = await _list_tools(session)
        capabilities = session.server_capabilities
        has_resources = capabilities is not None and capabilities.resources is not None
        self._reads_resources = has_resources and all(tool.name != READ_RESOURCE for tool in tools)
        return (*tools, _RESOURCE_TOOL) if self._reads_resources else tools

    def _is_stale(self) -> bool:
        is_old = time.monotonic() > self._listed_at + HTTP_LIST_SECONDS
        return self._changed or (is_old and isinstance(self._settings, HttpSettings))

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


async def _list_tools(session: ClientSession) -> tuple[types.Tool, ...]:
    tools: list[types.Tool] = []
    cursor: str | None = None
    while True:
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MAX_TOOLS:
            raise McpUnavailable(f"it has over {MAX_TOOLS} tools")
        if not cursor or not page.tools:
            return tuple(tools)


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

    async def list_tools(self) -> tuple[types.Tool, ...]:
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
        connection = await self._connect()
        result = await connection.call_tool(name, arguments, report)
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
