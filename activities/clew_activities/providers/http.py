"""The one place where a model provider is spoken to over HTTP, and where foreign errors become Clew's.

Nothing is retried here: Temporal's retry policy owns that. Nothing is followed: a redirect would carry the key
to a host that nobody configured. Nothing leaves with a secret of the worker in it: the reply while it grows, the
whole reply and every error pass through the worker's `Redaction`.

What arrives is bounded, read once, and folded in turns: other sessions' work goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

import httpx
from httpx_sse import EventSource

from clew_activities.providers.base import ModelRequest, Provider
from clew_activities.providers.errors import (
    BadRequest,
    ProviderError,
    ProviderUnavailable,
    TruncatedStream,
    from_response,
)
from clew_activities.providers.screened import Screened
from clew_workflows.protocol import ModelReply

ERROR_BODY_LIMIT = 64 * 1024
STREAM_LIMIT = 16 * 1024 * 1024
"""Bytes of a reply. Each chunk and each event counts for at least `_SMALLEST` of them."""
EVENT_LIMIT = 2 * 1024 * 1024
"""Characters of one event, or bytes of a reply that is one JSON value: it is parsed in one go."""

# A local model may think for minutes before its first byte.
_TIMEOUT = httpx.Timeout(600, connect=10)
_ERROR_BODY_SECONDS = 10
# What follows the end marker is the end of the body; once it is read, the connection can be used again.
_DRAIN_SECONDS = 1

# Bytes that a chunk or an event counts for at least: no honest server sends hundreds of thousands of smaller ones.
_SMALLEST = 64
# Bytes that are split into events at once.
_PIECE = 4096
# Characters of an event that is folded in a thread.
_LARGE_EVENT = 16 * 1024
# How long the event loop is kept from other tasks.
_TURN_SECONDS = 0.005


def http_client() -> httpx.AsyncClient:
    """The client of a worker: one for all its calls.

    It lets go of an idle connection before servers do (5 seconds is common): a request that meets their closing is
    lost. How many calls run at once is the worker's own limit.
    """
    return httpx.AsyncClient(limits=httpx.Limits(max_connections=None, keepalive_expiry=2))


async def stream(
    client: httpx.AsyncClient,
    provider: Provider,
    request: ModelRequest,
    decoder: Screened,
    *,
    now: Callable[[], float] = time.time,
) -> ModelReply:
    """Call a model and fold its reply into `decoder`, a fresh one, which the caller may look at meanwhile.

    `now` is in seconds since the epoch.

    Raises:
        ProviderError: as its tree in `errors` says, without secrets and without a cause.
    """
    try:
        await _converse(client, provider, request, decoder, now)
        return await asyncio.to_thread(decoder.finish)
    except ProviderError as error:
        failure = error
    except Exception as error:
        failure = ProviderUnavailable(f"the reply cannot be read ({type(error).__name__}: {error})")
        failure.__traceback__ = error.__traceback__
    failure.seal(decoder.redaction)
    # Outside of the handlers, where the error that is handled would become this one's context.
    raise failure


async def _converse(
    client: httpx.AsyncClient, provider: Provider, request: ModelRequest, decoder: Screened, now: Callable[[], float]
) -> None:
    call = provider.encode(request)
    with _translated():
        posted = client.build_request(
            "POST",
            provider.base_url + call.path,
            headers={
                "accept": "text/event-stream, application/json",
                # A compressed stream arrives in lumps, and one of a few bytes may hold gigabytes.
                "accept-encoding": "identity",
                "content-type": "application/json",
                **call.headers,
            },
            content=json.dumps(call.body, ensure_ascii=False).encode("utf-8", "replace"),
            timeout=_TIMEOUT,
        )
        response = await client.send(posted, stream=True, follow_redirects=False)
    async with aclosing(response):
        if response.status_code != 200:
            body = await _error_body(response)
            raise from_response(response.status_code, response.headers, body, now=now())
        await _fold(response, decoder)


async def _fold(response: httpx.Response, decoder: Screened) -> None:
    content_type = response.headers.get("content-type", "").partition(";")[0].strip()
    kind = content_type.lower()
    if kind not in ("application/json", "text/event-stream"):
        raise BadRequest(
            f"the answer is {content_type or 'of no type'} and no stream of events: is the base URL right?"
        )
    if encoding := _compression(response):
        raise BadRequest(f"the answer is compressed ({encoding}), although the request forbids it: check the proxy")
    intake = _Intake()
    async with aclosing(_limited(response, intake)) as body:
        try:
            with _translated(begun=True):
                if kind == "application/json":
                    await _feed(decoder, "message", await _whole(body))
                else:
                    await _fold_events(body, decoder, intake)
        except TruncatedStream:
            if not await asyncio.to_thread(_is_whole, decoder):
                raise


async def _fold_events(body: AsyncIterator[bytes], decoder: Screened, intake: _Intake) -> None:
    limited = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    async with aclosing(EventSource(limited).aiter_sse()) as events:
        async for event in events:
            if event.data:
                await _feed(decoder, event.event, event.data)
            if decoder.ended:
                break
            intake.count(max(_SMALLEST - len(event.data), 0))
            await intake.take_turns()
        with suppress(TimeoutError, httpx.HTTPError, ProviderError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in events:
                    await intake.take_turns()


async def _feed(decoder: Screened, event: str, data: str) -> None:
    """Feed one event; a large one in a thread, which the event loop takes turns with."""
    if len(data) > EVENT_LIMIT:
        raise TruncatedStream(f"an event of the reply is longer than {EVENT_LIMIT} characters")
    if len(data) > _LARGE_EVENT:
        await asyncio.to_thread(decoder.feed, event, data)
    else:
        decoder.feed(event, data)


async def _whole(body: AsyncIterator[bytes]) -> str:
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > EVENT_LIMIT:
            raise TruncatedStream(f"the reply is longer than {EVENT_LIMIT} bytes, and no stream")
    return data.decode("utf-8", "replace")


class _Intake:
    """What may still be read of a reply, and when the event loop's other tasks had their last turns."""

    def __init__(self) -> None:
        self._left = STREAM_LIMIT
        self._since = time.monotonic()

    def count(self, size: int) -> None:
        """Count bytes that were read.

        Raises:
            TruncatedStream: they are more than a reply may have.
        """
        self._left -= size
        if self._left < 0:
            raise TruncatedStream(f"the reply is longer than {STREAM_LIMIT} bytes")

    async def take_turns(self) -> None:
        """Let the other tasks run, if the last time was long ago."""
        if time.monotonic() - self._since > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.monotonic()


def _is_whole(decoder: Screened) -> bool:
    """Whether the reply was complete before its connection broke off, so that the break is no matter."""
    try:
        decoder.finish()
    except TruncatedStream:
        return False
    except ProviderError:
        pass
    return True


async def _limited(response: httpx.Response, intake: _Intake) -> AsyncGenerator[bytes, None]:
    """The body in small pieces, up to its limit.

    An empty line closes it: some servers end without the one that dispatches their last event.
    """
    async for chunk in response.aiter_raw():
        intake.count(max(len(chunk), _SMALLEST))
        for start in range(0, len(chunk), _PIECE):
            yield chunk[start : start + _PIECE]
            await intake.take_turns()
    yield b"\n\n"


async def _error_body(response: httpx.Response) -> str:
    """As much of the body as came in time and within its limit: the status has said what matters most."""
    if encoding := _compression(response):
        return f"the answer is compressed ({encoding}), although the request forbids it"
    body = bytearray()
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_SECONDS):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= ERROR_BODY_LIMIT:
                    break
    return body[:ERROR_BODY_LIMIT].decode("utf-8", "replace")


def _compression(response: httpx.Response) -> str:
    """The encodings of a body that is compressed, although it was not to be."""
    encodings: str = response.headers.get("content-encoding", "").strip()
    return "" if encodings.lower() == "identity" else encodings


@contextmanager
def _translated(*, begun: bool = False) -> Iterator[None]:
    """The HTTP library's errors as this package's; `begun` says that a reply had begun."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise BadRequest(f"the base URL cannot be called: {error}") from error
    except httpx.ReadTimeout as error:
        raise ProviderUnavailable(f"the provider sent nothing for {_TIMEOUT.read:.0f} seconds") from error
    except httpx.HTTPError as error:
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if begun:
            raise TruncatedStream(f"the connection broke off within the reply ({told})") from error
        raise ProviderUnavailable(f"the provider cannot be reached ({told})") from error
