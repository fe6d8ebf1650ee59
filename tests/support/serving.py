"""The service `clew serve` on a loopback port, with keys of two tenants, against a stack of the tests."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI
from httpx_sse import aconnect_sse

from clew import Clew
from clew.serve import Key, Keys, ServeSettings, make_app
from clew.serve.access import compute_hash, make_token
from tests.support import web
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import SentEvent


@dataclass(frozen=True)
class Served:
    """A running service.

    Attributes:
        app: The application.
        address: Its URL, without a path.
        tenant: The tenant of `token`. Each service has a tenant of its own.
        token: A key without restrictions.
        http: A client that sends the key.
        stranger: A client that sends a key of another tenant.
    """

    app: FastAPI
    address: str
    tenant: str
    token: str
    http: httpx.AsyncClient
    stranger: httpx.AsyncClient

    def scope(self, session_id: str) -> str:
        """Make the workflow id of a session of the tenant."""
        return f"{self.tenant}:{session_id}"

    async def receive(
        self, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET", **options: Any
    ) -> AsyncGenerator[SentEvent, None]:
        """Receive the server-sent events of a path."""
        async with aconnect_sse(
            self.http, method, path, headers=dict(headers or {}), timeout=PATIENCE_SECONDS, **options
        ) as source:
            source.response.raise_for_status()
            async for event in source.aiter_sse():
                yield SentEvent(event.id, json.loads(event.data))


def make_key(name: str, tenant: str, **fields: Any) -> tuple[str, Key]:
    """Make a key, and its row of the file."""
    token = make_token()
    return token, Key(name=name, hash=compute_hash(token), tenant=tenant, **fields)


def make_http(address: str, token: str | None) -> httpx.AsyncClient:
    """Make a client of a service that sends a key; None: it sends none."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=address, headers=headers, timeout=PATIENCE_SECONDS)


@asynccontextmanager
async def run_service(
    clew: Clew, *keys: Key, settings: ServeSettings | None = None, **fields: Any
) -> AsyncIterator[Served]:
    """Run the service with a key of a tenant of its own, a key of another tenant, and `keys`.

    `fields`: those of the first key.
    """
    tenant = f"t-{uuid.uuid4().hex[:12]}"
    token, own = make_key("own", tenant, **{"requests_per_minute": 100_000, **fields})
    other, strange = make_key("strange", f"s-{uuid.uuid4().hex[:12]}", requests_per_minute=100_000)
    app = make_app(Keys([own, strange, *keys]), clew=clew, settings=settings or ServeSettings())
    async with web.serve(app, clew) as host:
        address = f"http://{host}"
        async with make_http(address, token) as http, make_http(address, other) as stranger:
            try:
                yield Served(app, address, tenant, token, http, stranger)
            finally:
                await app.state.mcp_sessions.close()
