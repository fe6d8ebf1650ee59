"""The application: its routes, how it tells errors, and the probes of its health."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from temporalio.common import MetricMeter
from temporalio.service import RPCError

from clew.serve import agents, blob_routes, mcp_server, openai, schedule_routes, sessions, studio, ui_streams
from clew.serve.access import Keys, NewSessions, RateLimiter
from clew.serve.bodies import make_shares
from clew.serve.document import add_page, describe_routes, name_operation
from clew.serve.gate import Gate
from clew.serve.mcp_sessions import McpSessions
from clew.serve.openai.refusals import InvalidValue, make_error_response
from clew.serve.problems import PROBLEMS, InvalidParameter, Problem, describe_invalid, find_reader, make_response
from clew.serve.service_settings import ServeSettings
from clew.serve.shares import Shares
from clew.serve.streams import Drain
from clew.session import Clew
from clew_workflows.contract.errors import ClewError, InvalidInput
from clew_workflows.contract.outcomes import Output

HEALTH_SECONDS = 0.8
"""Time within which the Temporal server must answer a probe, in seconds: an orchestrator waits a second for it."""
AWAY_SECONDS = 30.0
"""Seconds without an answer of the Temporal server after which the process is not ready."""
ALLOWED_HEADERS = (
    *("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Clew-Session"),
    *("Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id"),
)
"""The headers that pages of the named origins may send."""

health = APIRouter(prefix="/health", tags=["health"])
"""The routes for the probes of an orchestrator. They need no key."""
ROUTERS: Sequence[APIRouter] = (
    sessions.router,
    agents.router,
    blob_routes.router,
    schedule_routes.router,
    studio.router,
    ui_streams.router,
    mcp_server.router,
    *openai.ROUTERS,
)
"""The routers of the application, beside its health."""


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
        generate_unique_id_function=name_operation,
    )
    app.state.keys, app.state.settings, app.state.clew = keys, settings, clew
    app.state.limiter, app.state.drain, app.state.new_sessions = RateLimiter(), Drain(), NewSessions()
    app.state.body_work, app.state.reports = make_shares(), Shares(sessions.REPORTS_AT_ONCE, 1)
    app.state.readiness = Readiness(app.state.drain)
    app.state.mcp_sessions = McpSessions(mcp_server.SERVER, app.state.drain, settings.max_mcp_sessions)
    for kind in (ClewError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(Gate, app=app, meter=meter)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=ALLOWED_HEADERS,
            expose_headers=["Mcp-Session-Id", "Retry-After", "X-Clew-Session", "X-Request-Id"],
        )
    for router in (health, *ROUTERS):
        app.include_router(router)
    if settings.describes_itself:
        describe_routes(app, (health, *ROUTERS))
        add_page(app)
    return app


class Health(Output):
    """That the process lives, or takes requests.

    Attributes:
        status: `ok`.
    """

    status: Literal["ok"] = "ok"


class NotReady(Output):
    """That the process takes no requests.

    Attributes:
        status: `not ready`.
        reason: Why.
    """

    status: Literal["not ready"] = "not ready"
    reason: str


@health.get("/live", operation_id="checkLife")
async def live() -> Health:
    """Answer while the process runs."""
    return Health()


@health.get("/ready", response_model=Health, responses={503: {"model": NotReady}}, operation_id="checkReadiness")
async def ready(request: Request) -> JSONResponse:
    """Answer 200 if the process takes requests: it does not drain, and Temporal is not away for long."""
    readiness: Readiness = request.app.state.readiness
    problem = await readiness.find_problem(request.app.state.clew)
    headers = {"Cache-Control": "no-store"}
    if problem:
        return JSONResponse(NotReady(reason=problem).model_dump(), 503, headers)
    return JSONResponse(Health().model_dump(), 200, headers)


class Readiness:
    """Whether load balancers may send the process requests.

    All processes miss the Temporal server at the same time. While it is away for a moment they stay ready: their
    callers get an error that says when to repeat the request, and not the load balancer's.

    Args:
        drain: The drain of the process.
        clock: The time in seconds.
    """

    def __init__(self, drain: Drain, clock: Callable[[], float] = time.monotonic) -> None:
        self._drain, self._clock = drain, clock
        self._seen_at: float | None = None

    async def find_problem(self, clew: Clew) -> str | None:
        """Find why the process is not ready; None: it is."""
        if self._drain.is_announced:
            return "draining"
        try:
            is_up = await clew.temporal.service_client.check_health(timeout=timedelta(seconds=HEALTH_SECONDS))
        except RPCError:
            is_up = False
        if is_up:
            self._seen_at = self._clock()
        if self._seen_at is None or self._clock() - self._seen_at > AWAY_SECONDS:
            return "the Temporal server does not answer"
        return None


# Errors.


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error in the form that the clients of the path know. The answer repeats no value."""
    is_openai = request.url.path.startswith(openai.PATHS)
    headers: Mapping[str, str] | None = None
    status: int | None = None
    match error:
        case RequestValidationError():
            # Parameters that are not valid.
            message, param = describe_invalid(error)
            error = (InvalidValue if is_openai else InvalidParameter)(message, param=param)
        case HTTPException():
            # The web framework's: no such route, another method, a body that cannot be read.
            headers, status = error.headers, error.status_code
            error = PROBLEMS.get(status, Problem)(str(error.detail))
        case InvalidParameter() if not is_openai and find_reader(request).is_operator:
            reason = await request.app.state.clew.explain_model(error.message)
            error = InvalidParameter(reason, param=error.param)
    assert isinstance(error, ClewError)
    response = make_error_response(request, error) if is_openai else make_response(request, error, status)
    response.headers.update(headers or {})
    return response
