"""The one place where a model provider is spoken to over HTTP, and where foreign errors become Clew's.

Nothing is retried here: Temporal's retry policy owns that. Nothing is followed: a redirect would carry the key
to a host that nobody configured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

import httpx
from httpx_sse import EventSource

from activities.providers.base import Decoder, HttpRequest, ModelRequest, Provider
from activities.providers.errors import BadRequest, ProviderError, ProviderUnavailable, TruncatedStream, from_response
from workflows.effects import ModelReply

ERROR_BODY_LIMIT = 64 * 1024
STREAM_LIMIT = 16 * 1024 * 1024

# A local model may think for minutes before its first byte.
_TIMEOUT = httpx.Timeout(600, connect=10)
_ERROR_BODY_SECONDS = 10
# What follows the end marker is the end of the body; once it is read, the connection can be used again.
_DRAIN_SECONDS = 1


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
    decoder: Decoder,
    *,
    now: Callable[[], float] = time.time,
) -> ModelReply:
    """Call a model and fold its reply into `decoder`, which the caller may look at meanwhile.

    `decoder` is a fresh one of the provider's. At most 16 MiB of a reply are read. `now` is in seconds since
    the epoch.

    Raises:
        ProviderError: as its tree in `errors` says; the cause is the HTTP library's error, where there was one.
    """
    call = provider.encode(request)
    secrets = _secrets(call)
    try:
        with _translated():
            posted = client.build_request(
                "POST",
                provider.base_url + call.path,
                headers={
                    "accept": "text/event-stream, application/json",
                    # A compressed stream arrives in lumps.
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
                raise from_response(response.status_code, response.headers, body, now=now(), secrets=secrets)
            await _fold(response, decoder)
        return decoder.finish()
    except ProviderError as error:
        error.hide(secrets)
        raise


async def _fold(response: httpx.Response, decoder: Decoder) -> None:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "text/event-stream"):
        raise BadRequest(f"the answer is {kind or 'of no type'} and no stream of events: is the base URL right?")
    async with aclosing(_limited(response)) as body:
        try:
            with _translated(begun=True):
                if kind == "application/json":
                    whole = b"".join([chunk async for chunk in body])
                    decoder.feed("message", whole.decode("utf-8", "replace"))
                else:
                    await _fold_events(body, decoder)
        except TruncatedStream:
            if not _is_whole(decoder):
                raise


async def _fold_events(body: AsyncIterator[bytes], decoder: Decoder) -> None:
    limited = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    async with aclosing(EventSource(limited).aiter_sse()) as events:
        async for event in events:
            if event.data:
                decoder.feed(event.event, event.data)
            if decoder.ended:
                break
        with suppress(TimeoutError, httpx.HTTPError, ProviderError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in events:
                    pass


def _is_whole(decoder: Decoder) -> bool:
    """Whether the reply was complete before its connection broke off, so that the break is no matter."""
    try:
        decoder.finish()
    except TruncatedStream:
        return False
    except ProviderError:
        pass
    return True


async def _limited(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body, up to its limit.

    An empty line closes it: some servers end without the one that dispatches their last event.
    """
    left = STREAM_LIMIT
    async for chunk in response.aiter_bytes():
        left -= len(chunk)
        if left < 0:
            raise TruncatedStream(f"the reply is longer than {STREAM_LIMIT} bytes")
        yield chunk
    yield b"\n\n"


async def _error_body(response: httpx.Response) -> str:
    """As much of the body as came in time and within its limit: the status has said what matters most."""
    body = bytearray()
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_SECONDS):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= ERROR_BODY_LIMIT:
                    break
    return body[:ERROR_BODY_LIMIT].decode("utf-8", "replace")


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


def _secrets(call: HttpRequest) -> tuple[str, ...]:
    """The values of the headers that carry a key, whole and without their scheme."""
    values = [value for name, value in call.headers.items() if name.lower() in ("authorization", "x-api-key")]
    return tuple({part for value in values for part in (value, value.rpartition(" ")[2])})
