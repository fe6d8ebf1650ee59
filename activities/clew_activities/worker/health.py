"""The health port of a worker: `/live` and `/ready` over HTTP, for the probes of an orchestrator."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from http import HTTPStatus

from temporalio.client import Client

from clew_activities.archive import ObjectMissing, Store

Check = Callable[[], Awaitable[str | None]]
"""Returns why a part is not ready; None: it is."""

CHECK_SECONDS = 3.0
"""Time for all checks together. A part that has not answered by then is not ready."""
CACHED_SECONDS = 1.0
"""Time for which the result of the checks is repeated: probes cost the server and the store little."""
MAX_CONNECTIONS = 16
"""Requests answered at the same time. Further connections are closed."""
READ_SECONDS = 5.0
"""Time in which a request must arrive, and in which its answer must be taken."""
MAX_HEADER_BYTES = 8192


class Health:
    """Answers `/live` with 200 while the event loop runs, `/ready` with 200 if all checks pass and 503 otherwise."""

    def __init__(self, checks: Mapping[str, Check], *, check_seconds: float = CHECK_SECONDS) -> None:
        self._checks = checks
        self._check_seconds = check_seconds
        self._connections = 0
        self._checking = asyncio.Lock()
        self._problems: dict[str, str] = {}
        self._checked_at: float | None = None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        self._connections += 1
        try:
            if self._connections <= MAX_CONNECTIONS:
                with suppress(
                    TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
                ):
                    async with asyncio.timeout(READ_SECONDS + self._check_seconds):
                        await self._answer(reader, writer)
        finally:
            self._connections -= 1
            writer.close()

    async def find_problems(self) -> dict[str, str]:
        """Run the checks, unless that was done a moment ago; returns why a part is not ready, by its name."""
        async with self._checking:
            if self._checked_at is None or time.monotonic() - self._checked_at >= CACHED_SECONDS:
                answers = await asyncio.gather(*map(self._run_check, self._checks.values()))
                self._problems = {name: text for name, text in zip(self._checks, answers, strict=True) if text}
                self._checked_at = time.monotonic()
            return self._problems

    async def _run_check(self, check: Check) -> str | None:
        try:
            async with asyncio.timeout(self._check_seconds):
                return await check()
        except TimeoutError:
            return f"no answer within {self._check_seconds:g} seconds"
        except Exception as error:
            # A part may fail with any error of its library. The message may hold an address with credentials.
            return type(error).__name__

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readuntil(b"\r\n\r\n")
        method, target, *_ = [*header.split(b"\r\n", 1)[0].decode("ascii").split(" "), "", ""]
        path = target.partition("?")[0]
        status, body = HTTPStatus.OK, {"status": "ok"}
        if path == "/ready":
            if problems := await self.find_problems():
                status, body = HTTPStatus.SERVICE_UNAVAILABLE, {"status": "not ready", **problems}
        elif path != "/live":
            status, body = HTTPStatus.NOT_FOUND, {"status": "this port has /live and /ready"}
        if method not in ("GET", "HEAD"):
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, {"status": "use GET"}
        data = json.dumps(body).encode() + b"\n"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        # uvloop refuses to write to a connection that the client has closed.
        if writer.is_closing():
            return
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else data))
        await writer.drain()


def check_server(client: Client) -> Check:
    """Make the check that the Temporal server answers."""

    async def check() -> str | None:
        is_up = await client.service_client.check_health(timeout=timedelta(seconds=CHECK_SECONDS))
        return None if is_up else "the server is not serving"

    return check


def check_store(store: Store) -> Check:
    """Make the check that the archive's store answers. The object that it asks for need not exist."""

    async def check() -> str | None:
        with suppress(ObjectMissing):
            await store.get_size("health")
        return None

    return check


@asynccontextmanager
async def serve_health(address: tuple[str, int] | None, checks: Mapping[str, Check]) -> AsyncIterator[None]:
    """Serve the health port while the context is open; without an address there is none.

    Raises:
        ValueError: The port cannot be opened.
    """
    if address is None:
        yield
        return
    host, port = address
    try:
        server = await asyncio.start_server(Health(checks).handle, host, port, limit=MAX_HEADER_BYTES)
    except OSError as error:
        raise ValueError(f"the health port {host}:{port} cannot be opened: {error.strerror or error}") from None
    try:
        yield
    finally:
        server.close()
