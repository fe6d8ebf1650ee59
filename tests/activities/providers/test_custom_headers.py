"""A gateway's own headers: sent with each request, kept out of texts, and refused if no request can have them."""

from __future__ import annotations

import json

import httpx
import pytest

from clew_activities.providers import Providers, ProvidersUnusable, load_providers
from clew_activities.providers.http import HttpSettings, stream
from clew_activities.providers.interface import Provider
from clew_activities.providers.loading import MAX_HEADERS, MAX_HEADERS_BYTES
from clew_activities.providers.provider_errors import ProviderError
from clew_activities.providers.redaction import find_suspected_secrets
from clew_activities.providers.reply import RedactedDecoder
from tests.support.provider_server import (
    ANTHROPIC_STREAM,
    HELLO_STREAM,
    FakeServer,
    encode_events,
    make_chunk,
    make_request,
)

SECRET = "gw-7c1f0d52hunter2"
VARIABLE = "CLEW_PROVIDER_GATEWAY_HEADERS"
HEADERS = json.dumps({"X-Gateway-Key": SECRET, "X-Team": "customer-support"})


def load(url: str = "http://127.0.0.1:1", headers: str = HEADERS, **environ: str) -> Providers:
    return load_providers({"CLEW_PROVIDER_GATEWAY_BASE_URL": url, VARIABLE: headers} | environ)


async def call(client: httpx.AsyncClient, provider: Provider, providers: Providers) -> RedactedDecoder:
    decoder = RedactedDecoder(provider.make_decoder(make_request()), providers.redaction)
    await stream(client, provider, make_request(), decoder, settings=HttpSettings(), now=lambda: 0.0)
    return decoder


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("openai", {"OPENAI_BASE_URL": "", "CLEW_PROVIDER_OPENAI_HEADERS": HEADERS}),
        ("openai-chat", {"OPENAI_BASE_URL": "", "CLEW_PROVIDER_OPENAI_HEADERS": HEADERS}),
        ("anthropic", {"ANTHROPIC_BASE_URL": "", "CLEW_PROVIDER_ANTHROPIC_HEADERS": HEADERS}),
        ("google", {"GOOGLE_BASE_URL": "", "CLEW_PROVIDER_GOOGLE_HEADERS": HEADERS}),
        ("gateway", {"CLEW_PROVIDER_GATEWAY_BASE_URL": "", VARIABLE: HEADERS}),
        (
            "gateway",
            {"CLEW_PROVIDER_GATEWAY_BASE_URL": "", VARIABLE: HEADERS, "CLEW_PROVIDER_GATEWAY_DIALECT": "anthropic"},
        ),
        (
            "gateway",
            {"CLEW_PROVIDER_GATEWAY_BASE_URL": "", VARIABLE: HEADERS, "CLEW_PROVIDER_GATEWAY_DIALECT": "responses"},
        ),
    ],
)
async def test_each_api_sends_them(
    server: FakeServer, client: httpx.AsyncClient, name: str, environ: dict[str, str]
) -> None:
    """Each request has them, whatever the codec makes of the answer."""
    providers = load_providers({key: value or server.url for key, value in environ.items()})
    provider = providers.get(name)
    server.answer(encode_events(ANTHROPIC_STREAM if "ANTHROPIC" in str(environ) else HELLO_STREAM))
    try:
        await call(client, provider, providers)
    except ProviderError:
        assert server.received
    headers = server.received[0].headers
    assert (headers["x-gateway-key"], headers["x-team"]) == (SECRET, "customer-support")
    assert headers["content-type"] == "application/json"
    assert SECRET not in repr(provider) + str(providers)


async def test_one_of_the_keys_name_replaces_the_key(server: FakeServer, client: httpx.AsyncClient) -> None:
    """As behind a gateway that wants Basic authentication."""
    headers = '{"Authorization": "Basic dXNlcjpodW50ZXIy"}'
    providers = load(server.url, headers, CLEW_PROVIDER_GATEWAY_API_KEY="sk-1")
    server.answer(encode_events(HELLO_STREAM))
    await call(client, providers.get("gateway"), providers)
    assert server.received[0].headers["authorization"] == "Basic dXNlcjpodW50ZXIy"
    assert providers.redaction.redact_text("it is dXNlcjpodW50ZXIy.") == "it is [redacted]."


async def test_a_server_that_repeats_a_secret_cannot_bring_it_into_a_reply_or_an_error(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    """The words of the other header are ordinary: a reply may have them."""
    providers = load(server.url)
    provider = providers.get("gateway")
    echo = f"customer-support sent {SECRET}"
    server.answer(encode_events([make_chunk(content=echo), make_chunk(finish_reason="stop"), "[DONE]"]))
    decoder = await call(client, provider, providers)
    assert decoder.text == "customer-support sent [redacted]"
    server.answer_json({"error": {"message": f"no access with {SECRET}"}}, status=401)
    with pytest.raises(ProviderError) as caught:
        await call(client, provider, providers)
    assert SECRET not in str(caught.value) + str(caught.value.details)


def test_what_counts_as_a_secret() -> None:
    """All values do, but words under a name that tells of none."""
    redaction = load(
        headers='{"X-A": "research-team", "X-Key": "another-team", "X-B": "https://x1.example"}'
    ).redaction
    assert redaction.redact_text("research-team") == "research-team"
    assert redaction.redact_text("another-team") == "[redacted]"
    assert redaction.redact_text("https://x1.example") == "[redacted]"
    assert redaction.hide_headers("X-Key: other") == "X-Key: [redacted]"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("hunter2", "must be a JSON object"),
        ('["X-Key", "hunter2"]', "must be a JSON object"),
        ("[" * 10_000, "must be a JSON object"),
        ('{"X-Key": "hunter2"', "must be a JSON object"),
        ('{"X-Key": 7}', "the value of header 1 must be a text"),
        ('{"X-Key": {"hunter2": "x"}}', "the value of header 1 must be a text"),
        ('{"X-Key": ""}', "the value of header 1 must be a text"),
        ('{"X-Key": " hunter2"}', "the value of header 1 must be a text"),
        (r'{"X-Key": "hunter2\r\nHost: evil"}', "the value of header 1 must be a text"),
        (r'{"X-Key": "hunter2\u0000"}', "the value of header 1 must be a text"),
        ('{"X-Key": "hünter2"}', "the value of header 1 must be a text"),
        (r'{"X-A": "a", "X-\nKey": "hunter2"}', "the name of header 2 is not"),
        ('{"X Key": "hunter2"}', "the name of header 1 is not"),
        ('{"": "hunter2"}', "the name of header 1 is not"),
        ('{"X-Key:": "hunter2"}', "the name of header 1 is not"),
        ('{"X-Key": "hunter2", "x-key": "hunter2"}', "header 2 has the name of an earlier one"),
        ('{"X-Key": "hunter2", "X-Key": "hunter2"}', "header 2 has the name of an earlier one"),
        ('{"Host": "hunter2"}', "Clew writes 'host' itself"),
        ('{"Content-Length": "0"}', "Clew writes 'content-length' itself"),
        ('{"Transfer-Encoding": "chunked"}', "Clew writes 'transfer-encoding' itself"),
        (json.dumps({f"X-{n}": "hunter2" for n in range(MAX_HEADERS + 1)}), f"more than {MAX_HEADERS} headers"),
        (json.dumps({"X-Key": "hunter2" * MAX_HEADERS_BYTES}), f"more than {MAX_HEADERS_BYTES} bytes"),
    ],
)
def test_a_worker_with_others_does_not_start(value: str, said: str) -> None:
    """The message names the variable and what is wrong, and never the value."""
    with pytest.raises(ProvidersUnusable) as caught:
        load(headers=value)
    assert VARIABLE in str(caught.value)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (VARIABLE, "CLEW_PROVIDER_GATEWAY_BASE_URL is not"),
        ("CLEW_PROVIDER_OPENAI_HEADERS", "set OPENAI_API_KEY or OPENAI_BASE_URL too"),
        ("CLEW_PROVIDER_ANTHROPIC_HEADERS", "set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL too"),
        ("CLEW_PROVIDER_GOOGLE_HEADERS", "set GEMINI_API_KEY or GOOGLE_BASE_URL too"),
    ],
)
def test_headers_of_no_server_are_refused(variable: str, said: str) -> None:
    with pytest.raises(ProvidersUnusable, match=variable) as caught:
        load_providers({variable: HEADERS})
    assert said in str(caught.value)


def test_before_the_environment_is_understood_all_of_their_texts_are_suspected() -> None:
    assert SECRET in find_suspected_secrets({VARIABLE: HEADERS + " broken"})
