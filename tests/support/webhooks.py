"""A receiver of webhooks on a loopback port, which takes nothing but what Standard Webhooks allow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import standardwebhooks
import uvicorn
from fastapi import FastAPI, Request, Response

from clew.contract import Webhook, WebhookMessage
from clew.local.child import LOOPBACK
from clew_activities.webhook_sending import WebhookSettings
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The secret `main` of the workers."""
SETTINGS = WebhookSettings(secrets={"main": (SECRET,)}, networks=(ip_network("127.0.0.0/8"),))
"""The settings of workers that send to receivers on this machine."""


@dataclass(frozen=True)
class Attempt:
    """A request that a receiver has got.

    Attributes:
        id: The id of the message.
        message: The message.
        status: The status that it was answered with.
        headers: Its headers.
        body: Its body.
    """

    id: str
    message: WebhookMessage
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Receiver:
    """A receiver.

    Attributes:
        port: Its port.
        attempts: The requests that it has got, in order.
        problems: What Standard Webhooks do not allow of them.
        answer: Makes the status of the answer to a request.
        holds: Requests are answered once it is set; None: at once.
        waiting: The requests that have waited for it.
    """

    port: int
    answer: Callable[[WebhookMessage], int] = lambda _message: 204
    attempts: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    holds: asyncio.Event | None = None
    waiting: int = 0

    def make_webhook(self, *events: Any) -> Webhook:
        """Make a webhook that names this receiver."""
        return Webhook(url=f"http://{LOOPBACK}:{self.port}/hook", secret="main", events=events or None)

    def list_taken(self) -> list[WebhookMessage]:
        """List the messages that it has taken, in order."""
        assert not self.problems
        return [attempt.message for attempt in self.attempts if attempt.status < 300]

    def count_types(self) -> Counter[str]:
        """Count the messages that it has taken, by their types."""
        return Counter(message.type for message in self.list_taken())

    async def wait_for(self, count: int) -> list[WebhookMessage]:
        """Wait until it has taken so many messages, and return them."""
        await wait_until(lambda: len(self.list_taken()) >= count)
        return self.list_taken()

    async def take(self, request: Request) -> Response:
        """Verify a request and answer it."""
        body = await request.body()
        headers = dict(request.headers)
        try:
            standardwebhooks.Webhook(SECRET).verify(body, headers)
            message = WebhookMessage.model_validate_json(body, extra="forbid")
        except (standardwebhooks.WebhookVerificationError, ValueError) as error:
            self.problems.append(repr(error))
            return Response(status_code=400)
        if headers["content-type"] != "application/json" or len(body) > 20_000 or "authorization" in headers:
            self.problems.append(f"{headers} {len(body)}")
        if set(json.loads(body)) != {"type", "timestamp", "data"}:
            self.problems.append(body.decode())
        if self.holds:
            self.waiting += 1
            await self.holds.wait()
        status = self.answer(message)
        self.attempts.append(Attempt(headers["webhook-id"], message, status, headers, body))
        # A redirect that is followed comes back as a GET, which is a problem.
        return Response(status_code=status, headers={"Location": "/elsewhere", "Retry-After": "0"})


def find_free_port() -> int:
    """Find a port of the loopback address that nothing listens on."""
    with closing(socket.socket()) as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
        return port


class _Server(uvicorn.Server):
    """A server that leaves the signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listen(receiver: Receiver) -> AsyncIterator[Receiver]:
    """Let a receiver listen at its port."""
    app = FastAPI(openapi_url=None)
    app.post("/hook")(receiver.take)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def refuse(path: str) -> Response:
        receiver.problems.append(f"a request of /{path}")
        return Response(status_code=404)

    config = uvicorn.Config(
        app, host=LOOPBACK, port=receiver.port, lifespan="off", log_level="error", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)
    try:
        yield receiver
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def receive(answer: Callable[[WebhookMessage], int] = lambda _message: 204) -> AsyncIterator[Receiver]:
    """Run a receiver at a free port."""
    async with listen(Receiver(find_free_port(), answer)) as receiver:
        yield receiver
