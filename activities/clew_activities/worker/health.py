"""The health port of a worker: `/live` and `/ready` over HTTP, for the probes of an orchestrator."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from http import HTTPStatus

from temporalio.client import Client

from clew_activities.archive import ObjectMissing, Store
from clew_activities.http_server import Request, Response, serve_http

Check = Callable[[], Awaitable[str | None]]
"""Returns why a part is not ready; None: it is."""

CHECK_SECONDS = 3.0
"""Time for all checks together. A part that has not answered by then is not ready."""
CACHED_SECONDS = 1.0
"""Time for which the result of the checks is repeated: probes cost the server and the store little."""


class Health:
    """Answers `/live` with 200 while the event loop runs, `/ready` with 200 if all checks pass and 503 otherwise."""

    def __init__(self, checks: Mapping[str, Check], *, check_seconds: float = CHECK_SECONDS) -> None:
        self._checks = checks
        self._check_seconds = check_seconds
        self._checking = asyncio.Lock()
        self._problems: dict[str, str] = {}
        self._checked_at: float | None = None

    def admit(self, request: Request) -> Response | int:
        """Refuse all but a `GET` or `HEAD` of the two paths, without a body."""
        if request.path not in ("/live", "/ready"):
            return _make_response(HTTPStatus.NOT_FOUND, {"status": "this port has /live and /ready"})
        if request.method not in ("GET", "HEAD"):
            return _make_response(HTTPStatus.METHOD_NOT_ALLOWED, {"status": "use GET"})
        return 0

    async def answer(self, request: Request) -> Response:
        """Answer a request that was admitted."""
        if request.path == "/ready" and (problems := await self.find_problems()):
            return _make_response(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "not ready", **problems})
        return _make_response(HTTPStatus.OK, {"status": "ok"})

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


def _make_response(status: HTTPStatus, body: Mapping[str, str]) -> Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return Response(status.value, headers, json.dumps(body).encode() + b"\n")


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
    async with AsyncExitStack() as serving:
        try:
            await serving.enter_async_context(serve_http(Health(checks), host, port))
        except OSError as error:
            raise ValueError(f"the health port {host}:{port} cannot be opened: {error.strerror or error}") from None
        yield
