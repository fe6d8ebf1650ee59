"""An application on a loopback port, and its server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from httpx_sse import aconnect_sse

from clew import Clew
from clew.local.child import LOOPBACK
from tests.support.waiting import PATIENCE_SECONDS


class _Server(uvicorn.Server):
    """A server that leaves the signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve(app: FastAPI, clew: Clew | None = None) -> AsyncIterator[str]:
    """Serve an application that finds its client in `app.state.clew`. Yields host and port."""
    app.state.clew = clew
    config = uvicorn.Config(
        app, host=LOOPBACK, port=0, lifespan="off", log_level="warning", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)
    try:
        yield f"{LOOPBACK}:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@dataclass(frozen=True)
class SentEvent:
    """A server-sent event.

    Attributes:
        id: The id of the newest event that has one, as a browser keeps it.
        data: The data.
    """

    id: str
    data: dict[str, Any]


async def receive(
    http: httpx.AsyncClient, path: str, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[SentEvent, None]:
    """Receive the events of a path."""
    async with aconnect_sse(http, "GET", path, headers=dict(headers or {}), timeout=PATIENCE_SECONDS) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            yield SentEvent(event.id, json.loads(event.data))
