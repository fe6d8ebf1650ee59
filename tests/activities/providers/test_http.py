import asyncio
import json
import sys
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.dialects import DIALECTS, STRICT
from clew_activities.providers.http import HttpSettings, stream
from clew_activities.providers.interface import Provider
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.provider_errors import (
    BadRequest,
    ContentRefused,
    ContextLengthExceeded,
    EmptyReply,
    Overloaded,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    TruncatedStream,
    Unauthorized,
    Unreachable,
)
from clew_activities.providers.redaction import Redaction
from clew_activities.providers.reply import RedactedDecoder
from clew_workflows.protocol import ModelReply
from tests.support.provider_server import (
    ADD,
    ANTHROPIC_STREAM,
    HELLO_STREAM,
    TOOL_STREAM,
    FakeServer,
    decode,
    encode_events,
    make_chunk,
    make_request,
)

KEY = "sk-test-hunter2"


def openai(server: FakeServer) -> OpenAI:
    return OpenAI("openai", server.url, DIALECTS["openai"], api_key=KEY)


def anthropic(server: FakeServer) -> Anthropic:
    return Anthropic("anthropic", server.url, api_key=KEY)


def make_screened(provider: Provider) -> RedactedDecoder:
    return RedactedDecoder(provider.make_decoder(make_request()), Redaction(provider.secrets))


async def call_provider(client: httpx.AsyncClient, provider: Provider, **settings: Any) -> ModelReply:
    bounds = HttpSettings(**settings)
    decoder = make_screened(provider)
    return await stream(client, provider, make_request(), decoder, settings=bounds, now=lambda: 1_800_000_000.0)


async def fail_call(client: httpx.AsyncClient, provider: Provider, **settings: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await call_provider(client, provider, **settings)
    assert KEY not in "".join(map(str, (caught.value, caught.value.details)))
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    return caught.value


HELLO = encode_events(HELLO_STREAM)


async def test_a_request_arrives_as_it_was_encoded(server: FakeServer, client: httpx.AsyncClient) -> None:
    server.answer(HELLO)
    model_request = make_request(tools=[ADD], temperature=0.5)
    await stream(client, openai(server), model_request, make_screened(openai(server)))
    (received,) = server.received
    assert received.path == "/chat/completions"
    assert received.body == openai(server).encode(model_request).body
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
async def test_a_reply_is_the_same_wherever_its_bytes_are_split(
    server: FakeServer, client: httpx.AsyncClient, size: int, newline: bytes
) -> None:
    events = [make_chunk(content="ü€\U0001f600"), *TOOL_STREAM]
    wire = b": a comment" + newline * 2 + encode_events(events).replace(b"\n", newline)
    server.answer(*(wire[at : at + size] for at in range(0, len(wire), size)))
    assert await call_provider(client, openai(server)) == decode(openai(server).make_decoder(make_request()), events)


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_byte_order_mark_is_no_part_of_the_first_event(
    server: FakeServer, client: httpx.AsyncClient, size: int
) -> None:
    wire = b"\xef\xbb\xbf" + encode_events([make_chunk("stop", content="hi")])
    server.answer(*(wire[at : at + size] for at in range(0, len(wire), size)))
    assert (await call_provider(client, openai(server))).content == "hi"
    message = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    server.answer(b"\xef\xbb\xbf" + json.dumps(message).encode(), content_type="application/json")
    assert (await call_provider(client, openai(server))).content == "hi"


async def test_an_event_stream_is_read_also_where_its_type_says_json(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    for before in (b"", b": keep-alive\n\n", b"\r\n"):
        server.answer(before + HELLO, content_type="application/json")
        assert (await call_provider(client, openai(server))).content == "Hello"


async def test_line_separators_of_unicode_end_no_line(server: FakeServer, client: httpx.AsyncClient) -> None:
    text = "a\u2028b\x85c\x0bd\x0ce"
    event = json.dumps(make_chunk("stop", content=text), ensure_ascii=False)
    server.answer(f"data: {event}\n\n".encode())
    assert (await call_provider(client, openai(server))).content == text


async def test_anthropics_named_events_are_folded(server: FakeServer, client: httpx.AsyncClient) -> None:
    server.answer(encode_events(ANTHROPIC_STREAM))
    reply = await call_provider(client, anthropic(server))
    assert reply == decode(anthropic(server).make_decoder(make_request()), ANTHROPIC_STREAM)
    assert server.received[0].path == "/v1/messages"
    assert server.received[0].headers["x-api-key"] == KEY


async def test_the_caller_sees_the_reply_grow(server: FakeServer, client: httpx.AsyncClient) -> None:
    go_on = asyncio.Event()
    server.answer(encode_events(HELLO_STREAM[:2]), go_on, encode_events(HELLO_STREAM[2:]))
    seen = asyncio.Event()

    class Watched(OpenAIDecoder):
        def feed(self, event: str, data: str) -> None:
            super().feed(event, data)
            if self.text:
                seen.set()

    decoder = RedactedDecoder(Watched(), Redaction())
    calling = asyncio.create_task(stream(client, openai(server), make_request(), decoder))
    await seen.wait()
    assert (decoder.text, decoder.ended) == ("Hel", False)
    go_on.set()
    assert (await calling).content == "Hello"


async def test_a_cancelled_call_hangs_up(server: FakeServer, client: httpx.AsyncClient) -> None:
    never = asyncio.Event()
    server.answer(encode_events(HELLO_STREAM[:2]), never)
    calling = asyncio.create_task(call_provider(client, openai(server)))
    await server.requested.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    never.set()
    await server.hung_up.wait()


async def test_connections_are_used_again(server: FakeServer, client: httpx.AsyncClient) -> None:
    for _ in range(3):
        server.answer(HELLO)
        await call_provider(client, openai(server))
    assert [received.connection for received in server.received] == [1, 1, 1]


async def test_an_end_marker_ends_the_reply_though_the_connection_stays_open(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    server.answer(HELLO, asyncio.Event())
    assert (await call_provider(client, openai(server), drain_seconds=0.01)).content == "Hello"


async def test_a_whole_json_body_is_a_reply_too(server: FakeServer, client: httpx.AsyncClient) -> None:
    message = {"role": "assistant", "content": "whole"}
    server.answer_json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    assert (await call_provider(client, openai(server))).content == "whole"


@pytest.mark.parametrize(
    ("steps", "content"),
    [
        pytest.param([*HELLO_STREAM[:4]], "Hello", id="a reason to stop and no marker"),
        pytest.param([*HELLO_STREAM[:3], "[DONE]"], "Hello", id="a marker and no reason"),
        pytest.param([*HELLO_STREAM[:4], '{"choices": [], "us'], "Hello", id="broken off after the reply"),
    ],
)
async def test_either_end_is_an_end(
    server: FakeServer, client: httpx.AsyncClient, steps: list[Any], content: str
) -> None:
    server.answer(encode_events(steps).rstrip(b"\n"))
    assert (await call_provider(client, openai(server))).content == content


async def test_a_drop_after_the_reply_was_whole_is_no_matter(server: FakeServer, client: httpx.AsyncClient) -> None:
    server.answer(encode_events(HELLO_STREAM[:4]), None)
    assert (await call_provider(client, openai(server))).content == "Hello"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((encode_events(HELLO_STREAM[:2]), None), id="dropped"),
        pytest.param((encode_events(HELLO_STREAM[:2]),), id="closed"),
        pytest.param((encode_events(HELLO_STREAM[:2])[:-30],), id="closed within an event"),
        pytest.param((), id="empty"),
        pytest.param((None,), id="dropped before the first byte"),
    ],
)
async def test_a_reply_that_breaks_off_can_be_retried(
    server: FakeServer, client: httpx.AsyncClient, steps: tuple[Any, ...]
) -> None:
    server.answer(*steps)
    assert (await fail_call(client, openai(server))).retryable


async def test_the_error_of_the_library_is_named(server: FakeServer, client: httpx.AsyncClient) -> None:
    """In the message: as a cause it would carry what was received into the history."""
    server.answer(encode_events(HELLO_STREAM[:2]), None)
    error = await fail_call(client, openai(server))
    assert isinstance(error, TruncatedStream)
    assert "RemoteProtocolError" in error.message or "ReadError" in error.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
async def test_a_server_that_is_not_there_is_unreachable(client: httpx.AsyncClient, url: str) -> None:
    """The message names the host and the variable, and says why; never the key."""
    error = await fail_call(client, OpenAI("local", f"{url}/v1", STRICT, api_key=KEY))
    assert (type(error), error.type) == (Unreachable, "provider_unavailable")
    assert f"'local' at {url} cannot be reached" in error.message
    assert "CLEW_PROVIDER_LOCAL_BASE_URL" in error.message
    assert ("connection refused" if "127" in url else "not known") in error.message


@pytest.mark.parametrize("status", [404, 405])
async def test_a_wrong_path_is_named_with_its_provider(
    server: FakeServer, client: httpx.AsyncClient, status: int
) -> None:
    """The server's own words follow, and the variable that has the path."""
    server.answer(b"Not Found", status=status, content_type="text/plain")
    error = await fail_call(client, openai(server))
    assert isinstance(error, BadRequest)
    assert f"{server.url}/chat/completions of provider 'openai'" in error.message
    assert f"{status}: Not Found" in error.message
    assert "OPENAI_BASE_URL" in error.message


async def test_a_model_that_a_provider_does_not_know_is_told_in_its_words(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    """A 404 about the model is not about the path."""
    server.answer_json({"error": {"message": "model 'x' not found"}}, 404)
    error = await fail_call(client, openai(server))
    assert (error.type, error.message) == ("unknown_model", "model 'x' not found")


async def test_a_server_that_fails_is_named(server: FakeServer, client: httpx.AsyncClient) -> None:
    """The answer may be a proxy's: the message has the address, the status and the words."""
    server.answer(b"Bad Gateway", status=502, content_type="text/plain")
    error = await fail_call(client, anthropic(server))
    assert (type(error), error.status) == (ProviderUnavailable, 502)
    assert server.url in error.message
    assert error.message.endswith("502: Bad Gateway")


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (429, {"retry_after": "7"}, {"error": {"message": "slow"}}, (RateLimited, 7)),
        (429, {"retry_after": formatdate(1_800_000_060, usegmt=True)}, {}, (RateLimited, 60)),
        (529, {"retry_after_ms": "1500"}, {"error": {"type": "overloaded_error"}}, (Overloaded, 1.5)),
        (401, {}, {"error": {"message": f"bad key {KEY}"}}, (Unauthorized, None)),
        (400, {}, {"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, (ContextLengthExceeded, None)),
    ],
)
async def test_a_refused_call_is_a_typed_error(  # noqa: PLR0917 - the table's columns
    server: FakeServer, client: httpx.AsyncClient, status: int, headers: dict[str, str], body: Any, expected: object
) -> None:
    server.answer_json(body, status, **headers)
    error = await fail_call(client, openai(server))
    assert (type(error), error.retry_after) == expected
    assert error.status == status


async def test_nothing_is_retried(server: FakeServer, client: httpx.AsyncClient) -> None:
    server.answer_json({}, 503)
    await fail_call(client, openai(server))
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_with_the_key(
    server: FakeServer, client: httpx.AsyncClient, status: int
) -> None:
    client.follow_redirects = True
    server.answer(status=status, location=f"{server.url}/elsewhere")
    error = await fail_call(client, openai(server))
    assert isinstance(error, BadRequest)
    assert "/elsewhere" in error.message
    assert len(server.received) == 1


async def test_an_error_inside_a_stream_is_typed_and_holds_no_key(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    server.answer(encode_events([{"type": "error", "error": {"type": "overloaded_error", "message": f"no {KEY}"}}]))
    assert isinstance(await fail_call(client, anthropic(server)), Overloaded)


@pytest.mark.parametrize("size", [1, 5, 6, 7, 100_000])
@pytest.mark.parametrize(
    "line",
    [
        b'error: {"code": 400, "message": "the request exceeds the available context size", "type": "x"}\n\n',
        b'error:{"message": "the request exceeds the available context size"}\r\n\r\ndata: [DONE]\n\n',
        b'{"error": {"message": "request (19185 tokens) exceeds the available context size (16384 tokens)"}}',
    ],
    ids=["a field", "without a space", "JSON"],
)
async def test_an_error_that_is_no_event_is_an_error_all_the_same(
    server: FakeServer, client: httpx.AsyncClient, line: bytes, size: int
) -> None:
    """llama.cpp sent a field of its own, and servers between its JSON: the reply was empty, and asked for again."""
    for wire in (line, b": ping\n\n" + encode_events([make_chunk(content="hi")]) + line):
        server.answer(*(wire[at : at + size] for at in range(0, len(wire), size)))
        assert isinstance(await fail_call(client, openai(server)), ContextLengthExceeded)


async def test_a_text_about_errors_is_no_error(server: FakeServer, client: httpx.AsyncClient) -> None:
    """Only the beginning of a line of the stream is one."""
    text = 'Log:\nerror: {"code": 1}\n{"a": 1}'
    server.answer(encode_events([make_chunk(content=text), make_chunk("stop")]))
    assert (await call_provider(client, openai(server))).content == text


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([make_chunk("content_filter")], ContentRefused),
        ([make_chunk("stop")], EmptyReply),
    ],
)
async def test_a_reply_that_is_none_is_typed(
    server: FakeServer, client: httpx.AsyncClient, events: list[Any], kind: type[ProviderError]
) -> None:
    server.answer(encode_events(events))
    assert isinstance(await fail_call(client, openai(server)), kind)


async def test_an_error_body_is_read_to_its_limit_and_no_longer_than_its_time(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    server.answer(*[b"x" * 10_000] * 7, asyncio.Event(), status=400, content_type="text/plain")
    assert len((await fail_call(client, openai(server))).message) == 2000
    server.answer(b"no", asyncio.Event(), status=400, content_type="text/plain")
    assert (await fail_call(client, openai(server), error_body_seconds=0.01)).message == "no"


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_a_stream_or_a_line_that_never_ends_is_cut_off(
    server: FakeServer, client: httpx.AsyncClient, content_type: str
) -> None:
    server.answer(b"data: ", *[b"x" * 10_000] * 6, asyncio.Event(), content_type=content_type)
    assert isinstance(await fail_call(client, openai(server), reply_bytes=50_000), TruncatedStream)


@pytest.mark.parametrize("content_type", ["text/html", ""])
async def test_an_answer_that_is_no_reply_says_what_it_is(
    server: FakeServer, client: httpx.AsyncClient, content_type: str
) -> None:
    server.answer(b"<html>", content_type=content_type)
    error = await fail_call(client, openai(server))
    assert isinstance(error, BadRequest)
    assert "OPENAI_BASE_URL" in error.message
    assert server.url in error.message


async def test_text_that_is_no_text_still_arrives(server: FakeServer, client: httpx.AsyncClient) -> None:
    server.answer(HELLO)
    model_request = make_request({"role": "user", "content": "a\ud800b"})
    await stream(client, openai(server), model_request, make_screened(openai(server)))
    assert server.received[0].body["messages"][0]["content"] == "a?b"


async def test_a_piece_of_text_takes_few_calls() -> None:
    """A reply has thousands: what each of them calls is most of a worker's work of a model call."""
    pieces = 500
    chunks = [encode_events([make_chunk(content=f" {number}")]) for number in range(pieces)]

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in (*chunks, encode_events([make_chunk("stop")])):
                yield chunk

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())

    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    provider = OpenAI("openai", "http://localhost", DIALECTS["openai"], api_key=KEY)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as mocked:
        profiler = sys.getprofile()
        sys.setprofile(count)
        try:
            reply = await call_provider(mocked, provider)
        finally:
            sys.setprofile(profiler)
    assert reply.text.endswith(" 498 499")
    assert calls / pieces < 25
