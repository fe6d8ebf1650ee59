"""What each request passes: the drain, its turn, the bounds of its body, the end of its key, and the access log."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import Headers, MutableHeaders, State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.common import MetricMeter

from clew.serve.access import Key, Keys
from clew.serve.bodies import SMALL_BYTES, ValueCounter
from clew.serve.error_words import TENANT
from clew.serve.mcp_sessions import McpSessions
from clew.serve.problems import (
    DRAIN_MESSAGE,
    RETRY_SECONDS,
    TOO_LARGE,
    BodyTooLarge,
    Draining,
    Internal,
    Problem,
    Unauthorized,
    make_response,
)
from clew.serve.service_settings import ServeSettings
from clew.serve.shares import Shares
from clew.serve.streams import Drain, make_error_event

log = logging.getLogger("clew.serve")
access_log = logging.getLogger("clew.serve.access")

REVOKE_SECONDS = 1.0
"""Seconds after which the keys of requests that are being answered are looked at again."""
DRAIN_RETRY_SECONDS = 1
"""Seconds after which a caller repeats a request that a draining process has refused."""
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "clew_serve_request_seconds": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
}
"""The upper bounds of the histograms' buckets, for `temporalio.runtime.PrometheusConfig`."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MEDIA_PATHS = ("/v1/responses", "/v1/conversations", "/v1/chat/completions", "/v1/ui/", "/v1/ag-ui/")
"""What the paths begin with whose bodies may have images and files in base64."""
MAX_VALUES = 25_000
"""Most values of a body: the texts, numbers, lists and objects in it."""
MEDIA_BODY_VALUES = 50_000
"""Most values of a body that may have the messages of a long conversation."""
MAX_HELD_BYTES = 120_000_000
"""Most bytes of all large bodies that a process holds at a time, from their begin until their responses begin."""
MAX_KEY_BYTES = 48_000_000
"""Most of them of one key."""
SMALL_VALUES = 1_000
"""A body of so many values is taken without a share."""
MAX_HELD_VALUES = 300_000
"""Most values of all other bodies that a process holds at a time. One takes up to 700 bytes while it is worked on."""
MAX_KEY_VALUES = 100_000
"""Most of them of one key."""
BEGUN_AT_ONCE = 16
"""Most requests that begin within one turn of the event loop: one of each key, however many it has sent."""
SHARE_SECONDS = 30.0
"""Time within which a key's other large bodies must make room for one more."""
BODY_SECONDS = 60.0
"""Time within which a body must come, from its first bytes on."""
COLLECTED_BYTES = 4_000_000
"""A body of more bytes leaves the memory when its response ends."""
_BLOB_PATH = re.compile(r"/v1/sessions/[^/]+/blobs")


class _BodyShares:
    """What bodies hold until they are worked on: bytes, and values."""

    def __init__(self) -> None:
        self.bytes = Shares(MAX_HELD_BYTES, MAX_KEY_BYTES)
        self.values = Shares(MAX_HELD_VALUES, MAX_KEY_VALUES)


class Gate:
    """What each request passes: the drain, the limits of its body, the access log and the metrics.

    It answers what fails unexpectedly, too. Neither the log nor an answer has a text of a conversation or a key.
    """

    def __init__(self, inner: ASGIApp, *, app: FastAPI, meter: MetricMeter) -> None:
        self._inner, self._app = inner, app
        self._requests = meter.create_histogram_float(
            "clew_serve_request_seconds", "Time of a request until its response has ended."
        )
        self._active = meter.create_gauge("clew_serve_active_requests", "Requests that are being answered.")
        self._streams = meter.create_gauge("clew_serve_open_streams", "Streams of server-sent events that are open.")
        self._streams.set(0)
        self._turns, self._shares = Shares(BEGUN_AT_ONCE, 1), _BodyShares()
        self._passing: set[_Passing] = set()
        self._watching: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        state = self._app.state
        drain: Drain = state.drain
        passing = _Passing(scope, receive, send, state, shares=self._shares, on_stream=self._count_streams)
        self._count(drain, 1)
        self._passing.add(passing)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_keys())
        try:
            if drain.has_begun and not passing.is_probe:
                await passing.answer(Draining(DRAIN_MESSAGE, retry_seconds=DRAIN_RETRY_SECONDS))
            elif passing.is_too_large:
                await passing.answer(passing.make_too_large())
            else:
                if not passing.is_probe:
                    async with self._turns.hold(passing.authorization):
                        await asyncio.sleep(0)
                await self._inner(scope, passing.receive, passing.send)
        except ClientDisconnect:
            # It has left while it sent its body.
            pass
        except asyncio.CancelledError:
            if not (passing.is_revoked or drain.has_begun):
                raise
            await passing.end_early()
        except Exception as error:
            log.error("a request has failed: %s", type(error).__name__, extra={"fields": {"at": _locate(error)}})
            if passing.status is not None:
                # The response has begun: the server closes the connection.
                raise Internal("the service has failed") from None
            await passing.answer(Internal("the service has failed: its log has more"))
        finally:
            self._let_go(passing)

    async def _watch_keys(self) -> None:
        """End what is answered to keys that were revoked or changed, while anything is answered."""
        keys: Keys = self._app.state.keys
        sessions: McpSessions = self._app.state.mcp_sessions
        while self._passing or len(sessions):
            await asyncio.sleep(REVOKE_SECONDS)
            for passing in list(self._passing):
                if passing.key is not None and not keys.has(passing.key):
                    passing.revoke()
            for owner in sessions.owners:
                if not keys.has_hash(owner):
                    await sessions.end_all_of(owner)
        self._watching = None

    def _let_go(self, passing: _Passing) -> None:
        """Count and report a request that has been answered."""
        self._passing.discard(passing)
        if passing.sends_events:
            self._count_streams()
        passing.end()
        self._count(passing.drain, -1)
        self._report(passing)

    def _count(self, drain: Drain, change: int) -> None:
        drain.count(change)
        self._active.set(drain.active)

    def _count_streams(self) -> None:
        self._streams.set(sum(passing.sends_events for passing in self._passing))

    def _report(self, passing: _Passing) -> None:
        fields = passing.list_fields()
        self._requests.record(
            passing.seconds, {name: str(fields.get(name, "")) for name in ("method", "route", "status", "key")}
        )
        if not passing.is_probe:
            access_log.info("request", extra={"fields": fields})


class _Passing:
    """One request that passes the gate.

    Attributes:
        drain: The drain that counts it.
        status: The status of the response; None: it has not begun.
        is_probe: An orchestrator asks whether the process is well.
        sends_events: The response is a stream of server-sent events.
        authorization: What the request says of its key.
        is_revoked: The key is no longer what it was.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        state: State,
        *,
        shares: _BodyShares,
        on_stream: Callable[[], None],
    ) -> None:
        self.status: int | None = None
        self._scope, self._receive, self._send, self._shares = scope, receive, send, shares
        self._on_stream = on_stream
        self.drain: Drain = state.drain
        settings: ServeSettings = state.settings
        self._begun_at = time.monotonic()
        self.is_probe = is_probe(scope["path"])
        self._limit = find_body_limit(scope["path"], settings)
        self._most_values = MEDIA_BODY_VALUES if scope["path"].startswith(MEDIA_PATHS) else MAX_VALUES
        self._counter = None if _BLOB_PATH.fullmatch(scope["path"]) else ValueCounter()
        self._bytes, self._has_ended = 0, False
        self._held: list[tuple[Shares, int]] = []
        self._task = asyncio.current_task()
        self.sends_events = False
        self.is_revoked = False
        headers = Headers(scope=scope)
        self.authorization = headers.get("authorization", "")
        sent = headers.get("x-request-id", "")
        self._id = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8)
        length = headers.get("content-length", "")
        self._length = int(length[:20]) if length.isascii() and length.isdigit() else None
        self.is_too_large = self._length is not None and self._length > self._limit

    @property
    def seconds(self) -> float:
        """The time since the request has come."""
        return time.monotonic() - self._begun_at

    def make_too_large(self) -> BodyTooLarge:
        """Make the error of a body that is too large."""
        return BodyTooLarge(f"the body has more than {self._limit} bytes")

    async def receive(self) -> Message:
        """Receive a part of the body, and count its bytes and its values. A large one waits for the key's share."""
        if self._has_ended:
            return await self._receive()
        if not self._held and max(self._length or 0, self._bytes) > SMALL_BYTES and self._counter:
            await self._take_share(self._shares.bytes, self._length or self._limit)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the body has not come in time") from None
        piece = message.get("body", b"")
        self._bytes += len(piece)
        self._has_ended = not message.get("more_body", False)
        # The web framework passes on no other exception from here.
        if self._bytes > self._limit:
            raise HTTPException(TOO_LARGE, str(self.make_too_large()))
        if self._counter:
            self._counter.take(piece)
            if self._counter.values > self._most_values:
                problem = f"the body has more than {self._most_values} values, the most that are read"
                raise HTTPException(TOO_LARGE, problem)
            if self._has_ended and self._counter.values > SMALL_VALUES:
                await self._take_share(self._shares.values, self._counter.values)
        return message

    async def _take_share(self, shares: Shares, amount: int) -> None:
        """Wait until the key may hold so many bytes or values.

        Raises:
            HTTPException: It may not, in time.
        """
        try:
            async with asyncio.timeout(SHARE_SECONDS):
                self._held.append((shares, await shares.take(self._owner, amount)))
        except TimeoutError:
            problem = "the key sends too many large bodies at a time: repeat the request"
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, problem, {"Retry-After": str(RETRY_SECONDS)}) from None

    @property
    def key(self) -> Key | None:
        """The key of the request; None: it has none, or the application has not looked at it."""
        key: Key | None = self._scope.get("state", {}).get("key")
        return key

    @property
    def _owner(self) -> str:
        return self.key.hash if self.key else ""

    def revoke(self) -> None:
        """End the request: its key is no longer what it was."""
        self.is_revoked = True
        if self._task:
            self._task.cancel()

    async def end_early(self) -> None:
        """Answer that the key was revoked, or the process ends: with the response, or as a stream's last event."""
        if self._task:
            self._task.uncancel()
        error: Problem = Draining(DRAIN_MESSAGE, retry_seconds=DRAIN_RETRY_SECONDS)
        if self.is_revoked:
            error = Unauthorized("the key was revoked, or its row was changed")
        if self.status is None:
            await self.answer(error)
        elif self.sends_events:
            event = make_error_event(error, TENANT).encode()
            await self._send({"type": "http.response.body", "body": event})

    def give_back(self) -> None:
        """Give back the key's share of bytes and values."""
        while self._held:
            shares, amount = self._held.pop()
            shares.give_back(self._owner, amount)

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the id of the request."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            if self.status < HTTPStatus.BAD_REQUEST:
                # A stream may go on for hours. An error ends at once, and its body leaves the memory then.
                self.give_back()
            headers = MutableHeaders(scope=message)
            self.sends_events = headers.get("content-type", "").startswith("text/event-stream")
            if self.sends_events:
                self._on_stream()
            if self.drain.is_announced and self._scope.get("http_version", "").startswith("1"):
                # The next request of the client shall find another process.
                headers["Connection"] = "close"
            headers["X-Request-Id"] = self._id
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
        await self._send(message)

    async def answer(self, error: Problem) -> None:
        """Answer with an error, without the application."""
        request = Request(self._scope)
        await make_response(request, error)(self._scope, self._receive, self.send)

    def end(self) -> None:
        """Let go of the body."""
        if self._bytes > COLLECTED_BYTES and self._counter:
            # An error keeps it in a circle of frames. The collector would come late: it counts objects, not bytes.
            gc.collect()
        self.give_back()

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


def is_probe(path: str) -> bool:
    """Whether an orchestrator asks by a request to this path whether the process is well."""
    return path.startswith("/health/")


def find_body_limit(path: str, settings: ServeSettings) -> int:
    """Find the most bytes of a body that a path takes."""
    if _BLOB_PATH.fullmatch(path):
        return settings.max_blob_bytes
    return settings.max_media_body_bytes if path.startswith(MEDIA_PATHS) else settings.max_body_bytes


def _locate(error: BaseException) -> str:
    """Name where an error was raised: the file, the line and the function, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames[-6:]))
