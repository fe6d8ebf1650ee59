"""The live channel's Redis server, which is killed, paused and emptied: viewers still see each reply, once."""

from __future__ import annotations

import asyncio
import shutil
import signal
from contextlib import AsyncExitStack
from typing import Self

from clew.contract.payloads import AssistantMessage
from clew.local.child import LOOPBACK, Child, accepts_connections, child_process, free_ports
from clew.session.events import EntryCommitted, Restarted, SessionEvent, TextAdded
from clew.session.live.channel import VARIABLE
from tests.chaos.processes import send_signal

START_SECONDS = 30.0
EMPTY = b"*1\r\n$8\r\nFLUSHALL\r\n"


class LiveServer:
    """The server (Debian: redis-server). Where it is not installed, a round has no live channel.

    Attributes:
        env: The variable of all processes that have the channel.
        faults: Faults so far.
    """

    def __init__(self) -> None:
        self.faults = 0
        (self._port,) = free_ports(1)
        self._program = shutil.which("redis-server")
        self.env = {VARIABLE: f"redis://{LOOPBACK}:{self._port}"} if self._program else dict[str, str]()
        self._stack = AsyncExitStack()
        self._failing = asyncio.Lock()
        self._child: Child | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        send_signal(self._child, signal.SIGCONT)
        await self._stack.aclose()

    async def fail(self, how: str, seconds: float) -> None:
        """Have the server fail for some seconds, in one of the ways of `LIVE_FAULTS`."""
        if self._child is None or self._failing.locked():
            return
        async with self._failing:
            self.faults += 1
            match how:
                case "kill":
                    await self._child.kill()
                    await asyncio.sleep(seconds)
                    await self._start()
                case "pause":
                    send_signal(self._child, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(seconds)
                    finally:
                        send_signal(self._child, signal.SIGCONT)
                case _:
                    _, writer = await asyncio.open_connection(LOOPBACK, self._port)
                    writer.write(EMPTY)
                    await writer.drain()
                    writer.close()

    async def _start(self) -> None:
        if self._program is None:
            return
        command = [self._program, "--port", str(self._port), "--bind", LOOPBACK, "--save", ""]
        self._child = child = await self._stack.enter_async_context(child_process("redis", command))
        await child.wait_until(lambda: accepts_connections(self._port), START_SECONDS)


class Texts:
    """What one viewer has seen of the replies that grow."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def take(self, event: SessionEvent) -> str | None:
        """Take the viewer's next event; returns what is wrong."""
        match event:
            case TextAdded():
                known = self._texts.get(event.call_id, "")
                if event.offset > len(known):
                    return f"{event.call_id} goes on at {event.offset}, and {len(known)} characters are known"
                self._texts[event.call_id] = known[: event.offset] + event.text
            case Restarted():
                self._texts.pop(event.call_id, None)
            case EntryCommitted(body=AssistantMessage() as reply):
                shown = self._texts.pop(event.entry.refs.get("call_id", ""), "")
                if "call_id" in event.entry.refs and shown != reply.text:
                    return f"entry {event.seq} has {len(reply.text)} characters, and {len(shown)} were shown"
        return None
