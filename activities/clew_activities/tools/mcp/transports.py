"""The transports of MCP servers: a child process, or a URL by streamable HTTP. Every size and rate is bounded.

A process sends and receives JSON-RPC messages in lines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import IO, Any

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest

from clew_activities.tools.mcp.mcp_settings import HttpSettings, ProcessSettings
from clew_activities.tools.mcp.server_answers import read_message

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest message of a server, in bytes."""
MAX_GARBAGE_LINES = 100
"""Most lines of a process that are not messages."""
MAX_MESSAGES_PER_SECOND = 2000
"""Most notifications and requests of a server in a second."""
GRACE_SECONDS = 1.0
"""Seconds that a process has to end after its standard input has closed, and again after SIGTERM."""
SESSION_ENDED = 404
"""The code of the error that stands for a request which a server refused because its MCP session has ended."""
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 300.0
"""Seconds that a stream may be silent, unless a call of a tool may take longer."""
_STDERR_BYTES = 1000
_ENDED = "its process has ended"
Streams = tuple[Any, Any]
"""The streams of received messages and of messages to send, as `ClientSession` takes them."""


@asynccontextmanager
async def run_server_process(settings: ProcessSettings) -> AsyncIterator[tuple[ServerProcess, Streams]]:
    """Start the process of a server and connect to it. It has ended when the context has.

    Raises:
        OSError: The process cannot be started.
    """
    child = _start(settings)
    try:
        stdin = await _open_writer(child.stdin)
        stdout, from_stdout = await _open_reader(child.stdout)
        stderr, from_stderr = await _open_reader(child.stderr)
    except BaseException:
        child.kill()
        raise
    process = ServerProcess(child, stdin, stdout, stderr)
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(work)
        for work in (process.read(incoming), process.write(outgoing), process.drain_errors())
    ]
    try:
        yield process, (received, sent)
    finally:
        stopping = asyncio.ensure_future(_stop(process, tasks))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            # The process must have ended first; each wait in it is bounded.
            await stopping
            raise
        finally:
            # A descendant in another group may still hold the pipes.
            for stream in (incoming, received, sent, outgoing, from_stdout, from_stderr):
                stream.close()


class ServerProcess:
    """A running child process, in a process group of its own.

    Attributes:
        problem: Why its connection has ended; None while it has not.
        ended: Set when the connection has ended.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
    ) -> None:
        self._process = process
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self.problem: str | None = None
        self.ended = asyncio.Event()
        self._errors = b""

    async def read(self, messages: anyio.abc.ObjectSendStream[SessionMessage | Exception]) -> None:
        """Pass on the messages of the process, until it ends or exceeds a bound."""
        garbage = received = 0
        second = time.monotonic()
        problem = _ENDED
        async with messages:
            while True:
                try:
                    line = await self._stdout.readline()
                except ValueError:
                    problem = f"it sent a message of over {MAX_MESSAGE_BYTES} bytes"
                    break
                if not line:
                    break
                message = read_message(line)
                if message is None:
                    garbage += bool(line.strip())
                    if garbage > MAX_GARBAGE_LINES:
                        problem = "it writes other lines than JSON-RPC messages to its standard output"
                        break
                    continue
                if isinstance(message, JSONRPCNotification | JSONRPCRequest):
                    if time.monotonic() - second >= 1:
                        second, received = time.monotonic(), 0
                    received += 1
                    if received > MAX_MESSAGES_PER_SECOND:
                        problem = f"it sent over {MAX_MESSAGES_PER_SECOND} messages in a second"
                        break
                try:
                    await messages.send(SessionMessage(message))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    break
        self._end(problem)

    async def write(self, messages: anyio.abc.ObjectReceiveStream[SessionMessage]) -> None:
        """Write messages to the process."""
        try:
            async with messages:
                async for sent in messages:
                    if self._stdin.is_closing():
                        raise BrokenPipeError
                    text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self._stdin.write(text.encode() + b"\n")
                    await self._stdin.drain()
        except OSError:
            self._end(_ENDED if await self._has_ended() else "its process reads no more")

    async def drain_errors(self) -> None:
        """Read the standard error, so that the process is not blocked; its end is kept for `describe_errors`."""
        while piece := await self._stderr.read(65536):
            self._errors = (self._errors + piece)[-_STDERR_BYTES:]

    def describe_errors(self) -> str:
        """Return the last line that the process wrote to its standard error; empty if there is none."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    async def stop(self) -> None:
        """End the process and all that it has started."""
        self._stdin.close()
        if not await self._has_ended():
            self._signal(signal.SIGTERM)
            await self._has_ended()
        # Also those of its children that have outlived it.
        self._signal(signal.SIGKILL)
        await self._has_ended()

    def _end(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.ended.set()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _has_ended(self) -> bool:
        give_up_at = time.monotonic() + GRACE_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > give_up_at:
                return False
            await asyncio.sleep(0.01)
        return True


def _start(settings: ProcessSettings) -> subprocess.Popen[bytes]:
    # Not by the event loop: uvloop gives a process sockets, which it cannot open as /dev/stderr.
    return subprocess.Popen(
        [settings.command, *settings.args],
        # The worker's own variables, and with them its keys, stay with the worker.
        env=get_default_environment() | settings.env,
        cwd=settings.cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        # Ctrl-C in a terminal must reach the worker alone.
        start_new_session=True,
    )


async def _open_reader(pipe: IO[bytes] | None) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader, transport


async def _open_writer(pipe: IO[bytes] | None) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    unread = asyncio.StreamReader()
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(unread), pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _stop(process: ServerProcess, tasks: list[asyncio.Task[None]]) -> None:
    await process.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_http_streams(settings: HttpSettings) -> AsyncIterator[Streams]:
    """Connect to a server. Requests follow no redirect to another host, so that headers stay with it."""
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=max(_READ_SECONDS, settings.timeout_seconds))
    async with (
        httpx2.AsyncClient(headers=settings.headers, timeout=timeout, transport=_BoundedTransport()) as client,
        streamable_http_client(settings.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Bounds responses, and makes messages readable that only nearly are JSON-RPC.

    A JSON response has at most the size of a message. Events of a stream are bounded one by one.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if request.method != "POST":
            return response
        if "event-stream" in response.headers.get("content-type", "").lower():
            if "content-encoding" not in response.headers:
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = _ReadableEvents(response.stream)
            return response
        body = await _read_body(response)
        headers = {
            name: value
            for name, value in response.headers.items()
            if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
        }
        if _has_ended_session(request, response.status_code, body):
            error = ErrorData(code=SESSION_ENDED, message="its session has ended")
            body = JSONRPCError(jsonrpc="2.0", id=None, error=error).model_dump_json().encode()
            headers["content-type"] = "application/json"
        elif body and (message := read_message(body)) is not None:
            body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            headers["content-type"] = "application/json"
        return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)


async def _read_body(response: httpx2.Response) -> bytes:
    body = bytearray()
    try:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"the response has over {MAX_MESSAGE_BYTES} bytes")
    finally:
        await response.aclose()
    return bytes(body)


def _has_ended_session(request: httpx2.Request, status: int, body: bytes) -> bool:
    """Whether a server refuses a request, before it runs, because it has no such MCP session (any more).

    The protocol has the status 404 for it. Servers that keep their sessions in memory answer 400 after a restart.
    """
    return "mcp-session-id" in request.headers and (status == 404 or (status == 400 and b"session" in body.lower()))


class _ReadableEvents(httpx2.AsyncByteStream):
    """Events whose messages can be read. One that is longer than a message ends the stream."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._stream:
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"an event has over {MAX_MESSAGE_BYTES} bytes")
            for line in lines:
                yield _read_event_line(line) + b"\n"
        if rest:
            yield _read_event_line(rest)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _read_event_line(line: bytes) -> bytes:
    """Make the message of a line readable. Other lines, and parts of messages, stay as they are."""
    field, colon, data = line.partition(b":")
    if field != b"data" or not colon or (message := read_message(data)) is None:
        return line
    return b"data: " + message.model_dump_json(by_alias=True, exclude_unset=True).encode()
