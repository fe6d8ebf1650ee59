"""The sessions of MCP clients whose protocol has them: those before 2026-07-28.

The server asks such a client something within a call, and the client answers, or cancels the call, with a request of
its own. `Mcp-Session-Id` brings that request to the session, which one process has. It holds nothing but the calls
that are being answered: when it ends, the client opens another one, and the sessions of Clew stay as they are.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.runner import serve_loop
from mcp.server.streamable_http import StreamableHTTPServerTransport
from starlette.types import Message, Receive, Scope, Send

from clew.serve.problems import QuotaExceeded
from clew.serve.streams import Drain
from clew_workflows.contract.errors import NotFound

log = logging.getLogger("clew.serve")

IDLE_SECONDS = 3600.0
"""Seconds without a request, or a stream of one, after which a session ends."""
MAX_SHARE = 4
"""A key has at most one in so many of the sessions that a process keeps."""
FULL_SECONDS = 30.0
"""Seconds after which a client that was refused a session may try again."""
_CLOSE_SECONDS = 0.1


@dataclass(eq=False)
class _Session:
    """A session of a client.

    Attributes:
        id: Its id.
        owner: The hash of the key that has opened it.
        transport: Its requests and their streams.
        active: How many of its requests are being answered.
        task: Reads and answers its messages.
    """

    id: str
    owner: str
    transport: StreamableHTTPServerTransport
    active: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class McpSessions:
    """The MCP sessions of a process. A key reaches no session that another one has opened.

    A new session takes the place of the one that has been idle for the longest time, if the process or the key has as
    many as it may have.

    Args:
        server: The server that answers.
        drain: The drain of the process.
        limit: The most sessions; 0: none.
        idle_seconds: Seconds without a request after which a session ends.
    """

    def __init__(self, server: Server[Any], drain: Drain, limit: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._server, self._drain, self._limit, self._idle_seconds = server, drain, limit, idle_seconds
        # In the order of their newest requests.
        self._sessions: dict[str, _Session] = {}

    def __len__(self) -> int:
        """Count the sessions that are open."""
        return len(self._sessions)

    @property
    def owners(self) -> frozenset[str]:
        """The hashes of the keys that have sessions."""
        return frozenset(session.owner for session in self._sessions.values())

    @property
    def are_kept(self) -> bool:
        """Whether the process keeps sessions."""
        return self._limit > 0

    async def open(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session for a key, and answer the request `initialize` that begins it.

        Raises:
            QuotaExceeded: The key, or the process, has as many as it may have, and all of them are in use.
        """
        session = await self._start(owner)
        is_open = False

        async def note_status(message: Message) -> None:
            nonlocal is_open
            is_open = is_open or (message["type"] == "http.response.start" and message["status"] < 400)
            await send(message)

        try:
            await self._answer(session, scope, receive, note_status)
        finally:
            if not is_open:
                await self._end(session)

    async def handle(self, owner: str, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a session.

        Raises:
            NotFound: This process has no such session of the key.
        """
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise NotFound("this process has no such MCP session: begin another one")
        if scope["method"] == "GET":
            await self._stream(session, scope, receive, send)
        else:
            await self._answer(session, scope, receive, send)

    async def close(self) -> None:
        """End all sessions."""
        tasks = [session.task for session in self._sessions.values() if session.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_all_of(self, owner: str) -> None:
        """End the sessions of a key that was revoked, with the calls that are being answered."""
        for session in [session for session in self._sessions.values() if session.owner == owner]:
            await self._end(session)

    async def _start(self, owner: str) -> _Session:
        evicted = self._make_room(owner)
        session_id = uuid.uuid4().hex
        transport = StreamableHTTPServerTransport(session_id, idle_timeout=self._idle_seconds)
        session = self._sessions[session_id] = _Session(session_id, owner, transport)
        connected = asyncio.Event()
        session.task = asyncio.create_task(self._run(session, connected))
        if evicted is not None:
            await self._end(evicted)
        await connected.wait()
        return session

    def _make_room(self, owner: str) -> _Session | None:
        """Take out a session that a new one replaces; None: there is room.

        Raises:
            QuotaExceeded: All are in use.
        """
        own = [session for session in self._sessions.values() if session.owner == owner]
        if len(own) >= max(self._limit // MAX_SHARE, 1):
            candidates = own
        elif len(self._sessions) >= self._limit:
            candidates = list(self._sessions.values())
        else:
            return None
        oldest = next((session for session in candidates if not session.active), None)
        if oldest is None:
            raise QuotaExceeded("all MCP sessions are in use: close one", retry_seconds=FULL_SECONDS)
        return self._sessions.pop(oldest.id)

    async def _run(self, session: _Session, connected: asyncio.Event) -> None:
        """Read and answer the messages of a session until it ends, or was idle for too long."""
        transport = session.transport
        try:
            async with transport.connect() as (reading, writing):
                connected.set()
                assert transport.idle_scope is not None, "the transport has a time to be idle"
                with transport.idle_scope:
                    await serve_loop(self._server, reading, writing, lifespan_state={}, session_id=session.id)
        except Exception as error:
            # The message may hold a text of the conversation.
            log.error("an MCP session has failed: %s", type(error).__name__)
        finally:
            connected.set()
            await self._end(session)

    async def _end(self, session: _Session) -> None:
        self._sessions.pop(session.id, None)
        if not session.transport.is_terminated:
            await session.transport.terminate()

    async def _answer(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        session.active += 1
        try:
            await session.transport.handle_request(scope, receive, send)
        finally:
            session.active -= 1
            is_open = self._sessions.pop(session.id, None) is not None and not session.transport.is_terminated
            if is_open:
                self._sessions[session.id] = session

    async def _stream(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream of what is about no call, until the client leaves or the process drains."""
        answering = asyncio.create_task(self._answer(session, scope, receive, send))
        draining = asyncio.create_task(self._drain.wait())
        try:
            await asyncio.wait({answering, draining}, return_when=asyncio.FIRST_COMPLETED)
            while not answering.done():
                session.transport.close_standalone_sse_stream()
                await asyncio.wait({answering}, timeout=_CLOSE_SECONDS)
            await answering
        finally:
            answering.cancel()
            draining.cancel()
