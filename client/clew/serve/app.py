"""The application: its settings, its routes, errors, health, metrics, the access log, and its end."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Annotated, Any, Self

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.common import MetricMeter
from temporalio.service import RPCError

from clew.serve import blobs, mcp_server, openai, sessions, studio, ui_streams
from clew.serve.access import Key, Keys, RateLimiter
from clew.serve.document import add_page, describe_bodies
from clew.serve.mcp_sessions import McpSessions
from clew.serve.problems import (
    DRAIN_MESSAGE,
    PROBLEMS,
    TOO_LARGE,
    BodyTooLarge,
    Draining,
    Internal,
    InvalidParameter,
    Problem,
    describe_invalid,
    find_status,
    find_tenant,
    make_body,
    make_headers,
)
from clew.serve.streams import Drain
from clew.session import Clew
from clew_workflows.contract.content import MAX_BLOB_BYTES
from clew_workflows.contract.errors import ClewError, InvalidInput
from clew_workflows.contract.names import TASK_QUEUE

log = logging.getLogger("clew.serve")
access_log = logging.getLogger("clew.serve.access")

HEALTH_SECONDS = 3.0
"""Time within which the Temporal server must answer a look at the readiness."""
DRAIN_RETRY_SECONDS = 1
"""Seconds after which a caller repeats a request that a draining process has refused."""
MAX_BODY_BYTES = 2_000_000
"""Largest body of a request, in bytes, unless its path takes files."""
MEDIA_BODY_BYTES = 40_000_000
"""Largest body of a request that may have images and files in base64, in bytes."""
MAX_MCP_SESSIONS = 1000
"""Most MCP sessions of a process."""
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "clew_serve_request_seconds": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
}
"""The upper bounds of the histograms' buckets, for `temporalio.runtime.PrometheusConfig`."""
ALLOWED_HEADERS = (
    *("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Clew-Session"),
    *("Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id"),
)
"""The headers that pages of the named origins may send."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MEDIA_PATHS = ("/v1/responses", "/v1/conversations", "/v1/chat/completions", "/v1/ui/", "/v1/ag-ui/")
"""What the paths begin with whose bodies may have images and files in base64."""
_BLOB_PATH = re.compile(r"/v1/sessions/[^/]+/blobs")


ROUTERS: Sequence[APIRouter] = (
    sessions.router,
    blobs.router,
    studio.router,
    ui_streams.router,
    mcp_server.router,
    *openai.ROUTERS,
)
"""The routers of the application, beside its health."""


class ServeSettings(BaseModel):
    """The settings of the service.

    Attributes:
        task_queue: The task queue of the workers.
        cors_origins: The origins whose pages may call the service, exactly; none: CORS is off.
        max_body_bytes: The largest body of a request.
        max_media_body_bytes: The largest body of a request that may have images and files in base64.
        max_blob_bytes: The largest body that is a blob.
        max_mcp_sessions: The most MCP sessions of a process; 0: none, so that each request of an MCP client may reach
            another process.
        describes_itself: Whether `/openapi.json` and `/docs` are served.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_queue: str = TASK_QUEUE
    cors_origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/*\s]+$")], ...] = ()
    max_body_bytes: int = Field(default=MAX_BODY_BYTES, ge=1)
    max_media_body_bytes: int = Field(default=MEDIA_BODY_BYTES, ge=1)
    max_blob_bytes: int = Field(default=MAX_BLOB_BYTES, ge=1)
    max_mcp_sessions: int = Field(default=MAX_MCP_SESSIONS, ge=0)
    describes_itself: bool = True

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read `CLEW_TASK_QUEUE`, `CLEW_SERVE_CORS_ORIGINS` and `CLEW_SERVE_MCP_SESSIONS`.

        Raises:
            InvalidInput: A value is not valid.
        """
        origins = environ.get("CLEW_SERVE_CORS_ORIGINS", "").split(",")
        settings = {
            "task_queue": environ.get("CLEW_TASK_QUEUE") or TASK_QUEUE,
            "cors_origins": tuple(origin for origin in map(str.strip, origins) if origin),
            "max_mcp_sessions": environ.get("CLEW_SERVE_MCP_SESSIONS") or MAX_MCP_SESSIONS,
        }
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            if error.errors()[0]["loc"][0] == "max_mcp_sessions":
                raise InvalidInput("CLEW_SERVE_MCP_SESSIONS must be a number, or 0") from None
            raise InvalidInput(
                "CLEW_SERVE_CORS_ORIGINS must be origins such as https://app.example.com, separated by commas"
            ) from None


def make_app(
    keys: Keys | None = None,
    *,
    clew: Clew | None = None,
    settings: ServeSettings | None = None,
    meter: MetricMeter = MetricMeter.noop,
) -> FastAPI:
    """Make the application, for any ASGI server. `app.state.drain.begin()` drains it.

    Args:
        keys: The keys that it accepts; None: those of the file that `CLEW_SERVE_KEYS` names.
        clew: The connection to Temporal; None: it connects as Temporal's environment configuration says.
        settings: The settings; None: those of the environment.
        meter: The meter of its metrics, such as that of the runtime of the connection.

    Raises:
        InvalidInput: The file of keys or a setting is not valid.
    """
    settings = settings or ServeSettings.from_environ(os.environ)
    if keys is None:
        if not (path := os.environ.get("CLEW_SERVE_KEYS")):
            raise InvalidInput("CLEW_SERVE_KEYS is not set: it names the file of keys, see `clew serve-key`")
        keys = Keys.load(path)

    @asynccontextmanager
    async def connect(app: FastAPI) -> AsyncIterator[None]:
        if app.state.clew is None:
            app.state.clew = await Clew.connect(task_queue=settings.task_queue)
        yield
        app.state.drain.begin()
        await app.state.mcp_sessions.close()

    app = FastAPI(
        title="Clew",
        version=version("clew"),
        description="Durable LLM-agent sessions on Temporal.",
        lifespan=connect,
        openapi_url="/openapi.json" if settings.describes_itself else None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.keys, app.state.settings, app.state.clew = keys, settings, clew
    app.state.limiter, app.state.drain = RateLimiter(), Drain()
    app.state.mcp_sessions = McpSessions(mcp_server.SERVER, app.state.drain, settings.max_mcp_sessions)
    app.add_exception_handler(ClewError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_middleware(Gate, app=app, meter=meter)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=ALLOWED_HEADERS,
            expose_headers=["Mcp-Session-Id", "Retry-After", "X-Clew-Session", "X-Request-Id"],
        )
    _add_health(app)
    for router in ROUTERS:
        app.include_router(router)
    if settings.describes_itself:
        describe_bodies(app, ROUTERS)
        add_page(app)
    return app


def _add_health(app: FastAPI) -> None:
    """Add the routes for the probes of an orchestrator. They need no key."""

    @app.get("/health/live", tags=["health"])
    async def live() -> dict[str, str]:
        """Answer while the process runs."""
        return {"status": "ok"}

    @app.get("/health/ready", tags=["health"])
    async def ready(request: Request) -> JSONResponse:
        """Answer 200 if the process takes requests: it does not drain, and the Temporal server answers."""
        drain: Drain = request.app.state.drain
        problem = "draining" if drain.has_begun else await _find_problem(request.app.state.clew)
        headers = {"Cache-Control": "no-store"}
        if problem:
            return JSONResponse({"status": "not ready", "reason": problem}, 503, headers)
        return JSONResponse({"status": "ok"}, 200, headers)


async def _find_problem(clew: Clew) -> str | None:
    """Find why the process is not ready; None: it is."""
    try:
        is_up = await clew.temporal.service_client.check_health(timeout=timedelta(seconds=HEALTH_SECONDS))
    except RPCError:
        is_up = False
    return None if is_up else "the Temporal server does not answer"


# Errors.


def make_response(request: Request, error: ClewError, status: int | None = None) -> JSONResponse:
    """Make the response that tells an error. `status`: another one than the error's own."""
    body = make_body(error, tenant=find_tenant(request))
    request.state.problem = body["error"]["type"]
    return JSONResponse(body, find_status(error) if status is None else status, make_headers(error))


def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of Clew, or of the service itself."""
    assert isinstance(error, ClewError)
    return make_response(request, error)


def _answer_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Answer parameters that are not valid. The answer does not repeat their values."""
    assert isinstance(error, RequestValidationError)
    message, param = describe_invalid(error)
    return make_response(request, InvalidParameter(message, param=param))


def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of the web framework: no such route, another method, a body that cannot be read."""
    assert isinstance(error, HTTPException)
    problem = PROBLEMS.get(error.status_code, Problem)(str(error.detail))
    response = make_response(request, problem, error.status_code)
    response.headers.update(error.headers or {})
    return response


class Gate:
    """What each request passes: the drain, the limit of its body, the access log and the metrics.

    It answers what fails unexpectedly, too. Neither the log nor an answer has a text of a conversation or a key.
    """

    def __init__(self, inner: ASGIApp, *, app: FastAPI, meter: MetricMeter) -> None:
        self._inner, self._app = inner, app
        self._requests = meter.create_histogram_float(
            "clew_serve_request_seconds", "Time of a request until its response has ended."
        )
        self._active = meter.create_gauge("clew_serve_active_requests", "Requests that are being answered.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        passing = _Passing(scope, receive, send, self._app.state.settings)
        drain: Drain = self._app.state.drain
        self._count(drain, 1)
        try:
            if drain.has_begun and not scope["path"].startswith("/health/"):
                await passing.answer(Draining(DRAIN_MESSAGE, retry_seconds=DRAIN_RETRY_SECONDS))
            elif passing.is_too_large:
                await passing.answer(passing.make_too_large())
            else:
                await self._inner(scope, passing.receive, passing.send)
        except ClientDisconnect:
            # It has left while it sent its body.
            pass
        except Exception as error:
            log.error("a request has failed: %s", type(error).__name__, extra={"fields": {"at": _locate(error)}})
            if passing.status is not None:
                # The response has begun: the server closes the connection.
                raise Internal("the service has failed") from None
            await passing.answer(Internal("the service has failed: its log has more"))
        finally:
            self._count(drain, -1)
            self._report(passing)

    def _count(self, drain: Drain, change: int) -> None:
        drain.count(change)
        self._active.set(drain.active)

    def _report(self, passing: _Passing) -> None:
        fields = passing.list_fields()
        self._requests.record(
            passing.seconds, {name: str(fields.get(name, "")) for name in ("method", "route", "status", "key")}
        )
        if not fields["route"].startswith("/health/"):
            access_log.info("request", extra={"fields": fields})


class _Passing:
    """One request that passes the gate.

    Attributes:
        status: The status of the response; None: it has not begun.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServeSettings) -> None:
        self.status: int | None = None
        self._scope, self._receive, self._send = scope, receive, send
        self._begun_at = time.monotonic()
        self._limit = find_body_limit(scope["path"], settings)
        self._bytes = 0
        headers = Headers(scope=scope)
        sent = headers.get("x-request-id", "")
        self._id = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8)
        length = headers.get("content-length", "")
        self.is_too_large = length.isascii() and length.isdigit() and int(length[:20]) > self._limit

    @property
    def seconds(self) -> float:
        """The time since the request has come."""
        return time.monotonic() - self._begun_at

    def make_too_large(self) -> BodyTooLarge:
        """Make the error of a body that is too large."""
        return BodyTooLarge(f"the body has more than {self._limit} bytes")

    async def receive(self) -> Message:
        """Receive a part of the body, and count its bytes."""
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._limit:
            # The web framework passes on no other exception from here.
            raise HTTPException(TOO_LARGE, str(self.make_too_large()))
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the id of the request."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._id
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
        await self._send(message)

    async def answer(self, error: Problem) -> None:
        """Answer with an error, without the application."""
        request = Request(self._scope)
        await make_response(request, error)(self._scope, self._receive, self.send)

    def list_fields(self) -> dict[str, Any]:
        """List the fields of the access log. The route has no ids, and no field has a query or a text."""
        state: Mapping[str, Any] = self._scope.get("state", {})
        route = self._scope.get("route")
        key: Key | None = state.get("key")
        fields = {
            "id": self._id,
            "method": self._scope["method"] if self._scope["method"] in _METHODS else "OTHER",
            "route": getattr(route, "path", "none"),
            "status": self.status or 499,
            "seconds": round(self.seconds, 4),
            "key": key.name if key else None,
            "tenant": key.tenant if key else None,
            "problem": state.get("problem"),
        }
        return {name: value for name, value in fields.items() if value is not None}


def find_body_limit(path: str, settings: ServeSettings) -> int:
    """Find the most bytes of a body that a path takes."""
    if _BLOB_PATH.fullmatch(path):
        return settings.max_blob_bytes
    return settings.max_media_body_bytes if path.startswith(MEDIA_PATHS) else settings.max_body_bytes


def _locate(error: BaseException) -> str:
    """Name where an error was raised: the file, the line and the function, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames[-6:]))
