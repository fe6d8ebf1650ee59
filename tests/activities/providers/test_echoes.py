"""No reply and no error contains the key, in any part of an answer and in any encoding."""

from __future__ import annotations

import logging
import traceback

import httpx
import pytest

from clew_activities.providers import RedactedDecoder
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.dialects import DIALECTS
from clew_activities.providers.http import stream
from clew_activities.providers.interface import HttpRequest, ModelRequest, Provider
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.provider_errors import BadRequest, ProviderError, ProviderUnavailable
from clew_activities.providers.redaction import Redaction
from tests.support.provider_echoes import ANTHROPIC, FAILURES, FORMS, REPLIES, find_leaks
from tests.support.provider_server import FakeServer, make_redacted_decoder, make_request

KEY = "sk-proj-Zm9vYmFyQUJD_dEf-0123456789xyzXYZwq7"
REDACTION = Redaction(["another-secret", KEY])


def test_every_form_is_a_leak_where_it_is_not_redacted() -> None:
    """`leaks` finds the key in every encoding."""
    for name, form in FORMS.items():
        assert find_leaks(f"x {form(KEY)} y", KEY), name
    assert find_leaks(KEY[20:32], KEY)
    assert not find_leaks(KEY[20:31], KEY)


async def collect_outcome(client: httpx.AsyncClient, provider: Provider) -> str:
    """Collect all results of a call: the reply, or the error with its causes and details."""
    decoder = make_redacted_decoder(provider, REDACTION)
    try:
        reply = await stream(client, provider, make_request(), decoder)
    except ProviderError as caught:
        error = caught
    else:
        return "\n".join(
            [reply.model_dump_json(), repr(reply), decoder.text, decoder.thinking, decoder.tool_name or ""]
        )
    assert (error.__cause__, error.__context__) == (None, None)
    return "\n".join([*traceback.format_exception(error), repr(error), error.message, repr(error.details)])


@pytest.mark.parametrize("part", FAILURES)
async def test_no_failure_tells_the_key(
    part: str, server: FakeServer, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The key is in neither the error's message, details and causes, nor the log."""
    caplog.set_level(logging.INFO)
    for form, encode in FORMS.items():
        caplog.clear()
        FAILURES[part](server, encode(KEY))
        said = await collect_outcome(client, OpenAI("openai", server.url, DIALECTS["openai"], api_key=KEY))
        assert said.startswith("Traceback"), form
        assert not find_leaks(said + caplog.text, KEY), form


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=[pytest.mark.slow, pytest.mark.long]) if part == "cut" else part for part in REPLIES],
)
async def test_no_reply_tells_the_key(part: str, server: FakeServer, client: httpx.AsyncClient) -> None:
    """Neither its text, nor its thinking, nor its tool calls, nor what could be seen of them before their end."""
    for form, encode in FORMS.items():
        REPLIES[part](server, encode(KEY))
        said = await collect_outcome(client, OpenAI("openai", server.url, DIALECTS["openai"], api_key=KEY))
        assert "content" in said, form
        assert not find_leaks(said, KEY), form


@pytest.mark.parametrize("part", ANTHROPIC)
async def test_no_block_tells_the_key(part: str, server: FakeServer, client: httpx.AsyncClient) -> None:
    """Provider data with the key in it is dropped: the provider would not take it back changed."""
    for form, encode in FORMS.items():
        ANTHROPIC[part](server, encode(KEY))
        said = await collect_outcome(client, Anthropic("anthropic", server.url, api_key=KEY))
        assert not find_leaks(said, KEY), form
        assert "signature" not in said, form


class Broken(OpenAIDecoder):
    """A decoder with a fault."""

    def feed(self, event: str, data: str) -> None:
        raise LookupError(f"no such thing as {KEY}")


async def test_an_error_that_nobody_foresaw_is_redacted_too(server: FakeServer, client: httpx.AsyncClient) -> None:
    """It comes as a failure that can be retried, with its type and its place in the code."""
    server.answer(b"data: {}\n\n")
    provider = OpenAI("openai", server.url, DIALECTS["openai"], api_key=KEY)
    with pytest.raises(ProviderUnavailable, match="LookupError") as caught:
        await stream(client, provider, make_request(), RedactedDecoder(Broken(), REDACTION))
    said = "".join(traceback.format_exception(caught.value))
    assert "in feed" in said
    assert not find_leaks(said.replace('f"no such thing as {KEY}"', ""), KEY)


class Unable(OpenAI):
    """A provider whose encoder has a fault."""

    def encode(self, request: ModelRequest) -> HttpRequest:
        raise LookupError(f"no such thing as {KEY}")


async def test_a_request_that_cannot_be_encoded_is_final(server: FakeServer, client: httpx.AsyncClient) -> None:
    """Encoders are pure: another attempt would fail alike. No request is sent."""
    provider = Unable("openai", server.url, DIALECTS["openai"], api_key=KEY)
    with pytest.raises(BadRequest, match="LookupError") as caught:
        await stream(client, provider, make_request(), make_redacted_decoder(provider, REDACTION))
    assert not find_leaks(caught.value.message, KEY)
    assert not server.received
