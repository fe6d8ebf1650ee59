"""A model provider's server on loopback with prepared answers."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Step = bytes | asyncio.Event | None
"""Bytes to send as one chunk, an event to wait for, or None to drop the connection."""


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    steps: tuple[Step, ...]
    verbatim: bool = False


@dataclass
class FakeServer:
    """A server on loopback that sends the prepared answers in order, over real HTTP.

    Attributes:
        url: Its base URL.
        received: The requests so far.
        answers: The answers to the next requests.
        requested: Set by the first request.
        hung_up: Set when a client closes its connection.
        connections: Connections opened so far.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: deque[Answer] = field(default_factory=deque)
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0

    def answer(self, *steps: Step, status: int = 200, **headers: str) -> None:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append(Answer(status, {"content-type": "text/event-stream"} | fields, steps))

    def answer_json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.answer(json.dumps(value).encode(), status=status, content_type="application/json", **headers)

    def answer_verbatim(self, *steps: Step) -> None:
        """Send these bytes, which need not be HTTP, and close the connection."""
        self.answers.append(Answer(0, {}, steps, verbatim=True))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.received.append(Received(first.split()[1], headers, body, number))
                self.requested.set()
                await self._write(writer, self.answers.popleft())
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        if not answer.verbatim:
            writer.write(f"HTTP/1.1 {answer.status} X\r\n{lines}transfer-encoding: chunked\r\n\r\n".encode())
        for step in answer.steps:
            if step is None:
                writer.transport.abort()
                raise ConnectionAbortedError
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif step:
                writer.write(step if answer.verbatim else f"{len(step):x}\r\n".encode() + step + b"\r\n")
                await writer.drain()
        if answer.verbatim:
            raise ConnectionAbortedError
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def run_fake_server() -> AsyncIterator[FakeServer]:
    """Run a fake server."""
    fake = FakeServer()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await fake.serve(reader, writer)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
