"""The only module that calls model providers over HTTP. It raises httpx's errors as Clew's.

It does not retry: Temporal's retry policy does. It does not follow redirects: they would send the key to a host that
is not configured. The worker's `Redaction` redacts the streamed text, the reply and every error.

Responses have bounded sizes, are read once, and are decoded in short steps, so that other tasks of the event loop run
in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass

import httpx

from clew_activities.offload import MAX_INLINE_SIZE, offload
from clew_activities.providers.aws import EVENT_STREAM, FrameParser
from clew_activities.providers.encoders import dump_body
from clew_activities.providers.interface import ModelRequest, Provider, Signer
from clew_activities.providers.provider_errors import (
    BadRequest,
    ErrorAnswer,
    ItemRefused,
    ProviderError,
    ProviderUnavailable,
    TruncatedStream,
    Unreachable,
)
from clew_activities.providers.reply import RedactedDecoder
from clew_activities.providers.sse import SseParser
from clew_workflows.contract.content import list_media
from clew_workflows.contract.payloads import Fitting, SentRequest
from clew_workflows.protocol import ModelReply


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The bounds of one model call.

    Attributes:
        connect_seconds: Longest wait for the connection.
        silence_seconds: Longest wait for the next chunk of a response; local models may need minutes for the first.
        reply_bytes: Largest reply. Each chunk and each event counts as at least `smallest_bytes`.
        smallest_bytes: Least size that a chunk or an event counts as; bounds the number of tiny chunks.
        event_size: Largest event in characters, or largest JSON reply in bytes; each is parsed in one step.
        error_body_bytes: Largest part of an error's body that is read.
        error_body_seconds: Longest time for reading an error's body.
        drain_seconds: Longest wait for the body's end after the end marker; a later end closes the connection.
        turn_seconds: Longest time of decoding before other tasks may run.
    """

    connect_seconds: float = 10
    silence_seconds: float = 600
    reply_bytes: int = 16 * 1024 * 1024
    smallest_bytes: int = 64
    event_size: int = 2 * 1024 * 1024
    error_body_bytes: int = 64 * 1024
    error_body_seconds: float = 10
    drain_seconds: float = 1
    turn_seconds: float = 0.005


DEFAULT = HttpSettings()
DRAWING = HttpSettings(reply_bytes=160 * 1024 * 1024, event_size=48 * 1024 * 1024)
"""The bounds of calls whose replies may have images or recordings. An event has a complete image in base64, and some
servers repeat it at the end of the stream."""

WRONG_PATH = (404, 405)
"""Statuses of an answer to a path that the server does not have."""

# The beginning of an event stream; no JSON begins so.
_EVENT_FIELDS = ("data:", "event:", "id:", "retry:", ":")

# Bytes that are split into events in one step.
_PIECE_BYTES = 4096


def make_http_client() -> httpx.AsyncClient:
    """Make the worker's HTTP client, one for all its calls.

    It closes idle connections before servers do (5 seconds is common): a request that is sent while the server closes
    the connection is lost. The worker, not the client, limits the number of calls.
    """
    return httpx.AsyncClient(limits=httpx.Limits(max_connections=None, keepalive_expiry=2))


async def stream(
    client: httpx.AsyncClient,
    provider: Provider,
    request: ModelRequest,
    decoder: RedactedDecoder,
    *,
    settings: HttpSettings = DEFAULT,
    now: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> ModelReply:
    """Call a model and fold its reply into `decoder`. The caller may read `decoder` meanwhile.

    Args:
        client: Sends the request.
        provider: Encodes the request and classifies error responses.
        request: The model call.
        decoder: A new decoder of the provider, wrapped for redaction.
        settings: The bounds of the call.
        now: Returns the time, in seconds since the epoch.
        monotonic: Returns the monotonic time in seconds, which decides when other tasks may run.

    Raises:
        ProviderError: The call failed; the error has no secrets and no cause. `errors` lists its classes.
    """
    try:
        await _send_and_read(client, provider, request, decoder, _ReadLimits(settings, now, monotonic))
        return await offload(decoder.size, decoder.finish)
    except ProviderError as error:
        failure = error
    except Exception as error:
        failure = ProviderUnavailable(f"the reply cannot be read ({type(error).__name__}: {error})")
        failure.__traceback__ = error.__traceback__
    failure.redact(decoder.redaction)
    # Raise outside the handlers: inside, the handled error would become this one's context.
    raise failure


async def _send_and_read(
    client: httpx.AsyncClient,
    provider: Provider,
    request: ModelRequest,
    decoder: RedactedDecoder,
    limits: _ReadLimits,
) -> None:
    settings = limits.settings
    with _translate_errors(provider, settings):
        size = sum(map(len, request.blobs.values()))
        http_request, decoder.fitting, decoder.sent = await offload(
            size, _build_request, client, provider, request, settings
        )
        if isinstance(provider, Signer):
            await _sign(provider, http_request)
            # A token that the provider has found outside of the environment.
            decoder.hide(
                http_request.headers[name] for name in provider.secret_headers if name in http_request.headers
            )
        response = await client.send(http_request, stream=True, follow_redirects=False)
    async with aclosing(response):
        status = response.status_code
        if 300 <= status < 400:
            location = response.headers.get("location", "an unnamed URL")
            raise BadRequest(
                f"{_name_endpoint(provider, http_request)} redirects to {location}; redirects are not followed: "
                f"{_name_setting(provider)} must be the URL itself",
                status=status,
            )
        if status != 200:
            body = await _read_error_body(response, settings)
            error = provider.read_error(
                ErrorAnswer(status=status, headers=response.headers, body=body, at=limits.now())
            )
            # These may come from another server than the provider's, or from another path.
            answers = f"{_name_endpoint(provider, http_request)} answers with status {status}: "
            if isinstance(error, ProviderUnavailable):
                error.surround(answers)
            elif isinstance(error, BadRequest) and not isinstance(error, ItemRefused) and status in WRONG_PATH:
                error.surround(answers, f"; is {_name_setting(provider)} right?")
            raise error
        await _read_reply(response, provider, decoder, limits)


def _build_request(
    client: httpx.AsyncClient, provider: Provider, request: ModelRequest, settings: HttpSettings
) -> tuple[httpx.Request, Fitting | None, SentRequest]:
    """Encode the request. A failure of the encoder is final: it is pure, so a retry would fail too."""
    try:
        encoded = provider.encode(request)
        content = dump_body(encoded.body)
    except ProviderError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise BadRequest(f"provider {provider.name!r} cannot encode the request ({message})") from error
    http_request = client.build_request(
        "POST",
        provider.base_url + encoded.path,
        headers={
            "accept": "text/event-stream, application/json",
            # Compression delays a stream's events, and a few compressed bytes may expand to gigabytes.
            "accept-encoding": "identity",
            "content-type": "application/json",
            **encoded.headers,
        },
        content=content,
        timeout=httpx.Timeout(settings.silence_seconds, connect=settings.connect_seconds),
    )
    contents = (message["content"] for message in request.messages)
    has_media = any(not isinstance(content, str) and list_media(content) for content in contents)
    sent = SentRequest(
        digest=hashlib.sha256(content).hexdigest(),
        encoder=encoded.encoder,
        dialect=encoded.dialect,
        takes=tuple(sorted(request.takes)) if has_media else (),
    )
    return http_request, encoded.fitting, sent


async def _sign(provider: Signer, request: httpx.Request) -> None:
    """Add the headers of a provider's signature. It may read files and call servers that hold credentials."""
    request.headers.update(await asyncio.to_thread(provider.sign, str(request.url), request.headers, request.content))


def _name_endpoint(provider: Provider, request: httpx.Request) -> str:
    return f"{request.url.copy_with(query=None)} of provider {provider.name!r}"


def _name_server(provider: Provider) -> str:
    url = httpx.URL(provider.base_url)
    return f"the provider {provider.name!r} at {url.copy_with(path='/', query=None, fragment=None)}".rstrip("/")


def _name_setting(provider: Provider) -> str:
    """Name the variable that holds the base URL. Providers of other modules have settings of their own."""
    setting: str | None = getattr(provider, "setting", None)
    if setting:
        return setting
    if not type(provider).__module__.startswith(f"{__package__}."):
        return f"the base URL of provider {provider.name!r}"
    prefix = "OPENAI" if provider.name == "openai-chat" else provider.name.upper()
    return f"{prefix}_BASE_URL" if prefix in ("OPENAI", "ANTHROPIC", "GOOGLE") else f"CLEW_PROVIDER_{prefix}_BASE_URL"


async def _read_reply(
    response: httpx.Response, provider: Provider, decoder: RedactedDecoder, limits: _ReadLimits
) -> None:
    content_type = response.headers.get("content-type", "").partition(";")[0].strip()
    kind = content_type.lower()
    if kind not in ("application/json", "text/event-stream", EVENT_STREAM):
        raise BadRequest(
            f"{_name_endpoint(provider, response.request)} answers with {content_type or 'no type'}, not with an "
            f"event stream: is {_name_setting(provider)} right? It is the base URL of the API, not of a web page"
        )
    if encoding := _find_compression(response):
        raise BadRequest(f"the response is compressed ({encoding}), although the request forbids it: check the proxy")
    async with aclosing(_limit_body(response, limits)) as body:
        try:
            with _translate_errors(provider, limits.settings, started=True):
                if kind == EVENT_STREAM:
                    await _feed_events(FrameParser(limits.settings.event_size), body, decoder, limits)
                elif kind == "text/event-stream":
                    await _feed_events(SseParser(), body, decoder, limits)
                elif (text := await _read_body(body, limits.settings)).lstrip().startswith(_EVENT_FIELDS):
                    # Some gateways name the type of the reply that the request does not ask for.
                    await _feed_events(SseParser(), _send_again(text, limits), decoder, limits)
                else:
                    await _feed(decoder, "message", text, limits.settings)
        except TruncatedStream:
            if not await offload(decoder.size, _is_complete, decoder):
                raise


async def _feed_events(
    parser: SseParser | FrameParser,
    body: AsyncGenerator[bytes, None],
    decoder: RedactedDecoder,
    limits: _ReadLimits,
) -> None:
    async with aclosing(body):
        async for piece in body:
            if await _feed_complete(parser.feed(piece), decoder, limits):
                break
        else:
            await _feed_complete(parser.finish(), decoder, limits)
        with suppress(TimeoutError, httpx.HTTPError, ProviderError):
            async with asyncio.timeout(limits.settings.drain_seconds):
                async for _ in body:
                    pass


async def _feed_complete(events: Iterable[tuple[str, str]], decoder: RedactedDecoder, limits: _ReadLimits) -> bool:
    """Feed the events that a piece of the body has completed. Returns whether the reply has ended."""
    smallest = limits.settings.smallest_bytes
    for event, data in events:
        size = len(data)
        if size > MAX_INLINE_SIZE:
            await _feed(decoder, event, data, limits.settings)
        elif data:
            # Not awaited: a reply has hundreds of events.
            decoder.feed(event, data)
        if decoder.ended:
            return True
        if size < smallest:
            limits.count(smallest - size)
    return False


async def _feed(decoder: RedactedDecoder, event: str, data: str, settings: HttpSettings) -> None:
    """Feed one event to the decoder."""
    if len(data) > settings.event_size:
        raise TruncatedStream(f"an event of the reply is longer than {settings.event_size} characters")
    await offload(len(data), decoder.feed, event, data)


async def _read_body(body: AsyncGenerator[bytes, None], settings: HttpSettings) -> str:
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > settings.event_size:
            raise TruncatedStream(f"the reply is longer than {settings.event_size} bytes and not a stream")
    return data.decode("utf-8-sig", "replace")


class _ReadLimits:
    """The bounds and clocks of one call: the bytes that may still be read, and the start of the current turn."""

    def __init__(self, settings: HttpSettings, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.settings = settings
        self.now = now
        self._remaining_bytes = settings.reply_bytes
        self._monotonic = monotonic
        self._turn_start = monotonic()

    def count(self, size: int) -> None:
        """Count bytes of the reply.

        Raises:
            TruncatedStream: The reply is longer than `reply_bytes`.
        """
        self._remaining_bytes -= size
        if self._remaining_bytes < 0:
            raise TruncatedStream(f"the reply is longer than {self.settings.reply_bytes} bytes")

    @property
    def is_turn_over(self) -> bool:
        """Whether `turn_seconds` have passed since other tasks could run."""
        return self._monotonic() - self._turn_start > self.settings.turn_seconds

    async def yield_control(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)
        self._turn_start = self._monotonic()


def _is_complete(decoder: RedactedDecoder) -> bool:
    """Whether the reply was already complete when the connection broke, so that the break can be ignored."""
    try:
        decoder.finish()
    except TruncatedStream:
        return False
    except ProviderError:
        pass
    return True


async def _limit_body(response: httpx.Response, limits: _ReadLimits) -> AsyncGenerator[bytes, None]:
    """Yield the body in small pieces, up to its limit."""
    async for chunk in response.aiter_raw():
        limits.count(max(len(chunk), limits.settings.smallest_bytes))
        for start in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[start : start + _PIECE_BYTES]
            if limits.is_turn_over:
                await limits.yield_control()


async def _send_again(text: str, limits: _ReadLimits) -> AsyncGenerator[bytes, None]:
    data = text.encode()
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
        if limits.is_turn_over:
            await limits.yield_control()


async def _read_error_body(response: httpx.Response, settings: HttpSettings) -> str:
    """Read the body up to its limits of size and time. The status alone classifies most errors."""
    if encoding := _find_compression(response):
        return f"the response is compressed ({encoding}), although the request forbids it"
    body = bytearray()
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(settings.error_body_seconds):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= settings.error_body_bytes:
                    break
    return body[: settings.error_body_bytes].decode("utf-8-sig", "replace")


def _find_compression(response: httpx.Response) -> str:
    """Return the body's content encodings; an empty string if it is not compressed."""
    encodings: str = response.headers.get("content-encoding", "").strip()
    return "" if encodings.lower() == "identity" else encodings


@contextmanager
def _translate_errors(provider: Provider, settings: HttpSettings, *, started: bool = False) -> Iterator[None]:
    """Raise httpx's errors as this package's. `started`: the reply had begun, so a break truncated it."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise BadRequest(f"the base URL cannot be called: {error}") from error
    except httpx.ReadTimeout as error:
        raise ProviderUnavailable(
            f"{_name_server(provider)} sent nothing for {settings.silence_seconds:.0f} seconds"
        ) from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unreachable(
            f"{_name_server(provider)} cannot be reached ({_describe_connect_error(error)}): does it run, and is "
            f"{_name_setting(provider)} right?"
        ) from error
    except httpx.HTTPError as error:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if started:
            raise TruncatedStream(f"the connection broke during the reply ({message})") from error
        raise ProviderUnavailable(f"{_name_server(provider)} ended the connection ({message})") from error


def _describe_connect_error(error: Exception) -> str:
    """Describe why there is no connection, by the innermost error: httpx's own says less."""
    cause: BaseException = error
    while following := cause.__cause__ or cause.__context__:
        cause = following
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, httpx.ConnectTimeout):
        return "no answer to the attempt to connect"
    return f"{type(error).__name__}: {cause}"
