"""A recorded model call is encoded again, and compared with what its provider received."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from clew.contract import ModelOptions
from clew_activities.providers import encoders
from clew_activities.providers.anthropic import Anthropic
from clew_activities.providers.dialects import find_dialect
from clew_activities.providers.encoders import compare_request, dump_body, make_cache_key, wrap_schema
from clew_activities.providers.interface import ModelRequest, Provider
from clew_activities.providers.openai import OpenAI
from clew_workflows.contract.payloads import SentRequest

REQUEST = ModelRequest(
    model="m",
    messages=[{"role": "user", "content": "hi"}],
    tools=[],
    options=ModelOptions(max_output_tokens=10),
    output_schema={"type": "array", "items": {"type": "integer"}},
)
PROVIDERS: dict[str, Provider] = {
    "openai": OpenAI("openai", "https://api.openai.com/v1", find_dialect("openai", "https://api.openai.com/v1")),
    "local": OpenAI("local", "http://127.0.0.1:1/v1", find_dialect("local", "http://127.0.0.1:1/v1")),
    "anthropic": Anthropic("anthropic", "https://api.anthropic.com"),
}


def send(provider: Provider, request: ModelRequest = REQUEST) -> SentRequest:
    """Note what a provider gets of a request, as a model call does."""
    encoded = provider.encode(wrap_schema(request))
    digest = hashlib.sha256(dump_body(encoded.body)).hexdigest()
    return SentRequest(digest=digest, encoder=encoded.encoder, dialect=encoded.dialect)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_call_that_was_sent_so_is_the_same(name: str) -> None:
    """Whatever its address is, a provider's body follows from the request, its name and its dialect."""
    assert compare_request(REQUEST, name, send(PROVIDERS[name])).status == "same"


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_call_that_was_sent_otherwise_is_different(name: str) -> None:
    """Another message, or another option, is another body."""
    sent = send(PROVIDERS[name])
    for changed in (
        replace(REQUEST, messages=[{"role": "user", "content": "ho"}]),
        replace(REQUEST, options=ModelOptions(max_output_tokens=11)),
        replace(REQUEST, output_schema=None),
    ):
        comparison = compare_request(changed, name, sent)
        assert comparison.status == "different"
        assert comparison.problem


def test_another_version_of_the_encoder_is_not_compared() -> None:
    """Neither a newer version of an encoder, nor a team's own provider."""
    sent = send(PROVIDERS["openai"])
    name, _, version = sent.encoder.partition("/")
    for encoder in (f"{name}/{int(version) + 1}", "parrot/1", "unknown"):
        comparison = compare_request(REQUEST, "openai", replace(sent, encoder=encoder))
        assert comparison.status == "other_encoder"
        assert encoder in (comparison.problem or "")


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_encoder_is_found_by_the_name_that_it_writes(name: str) -> None:
    """What a provider of Clew's own has sent can be encoded again."""
    assert send(PROVIDERS[name]).encoder.partition("/")[0] in encoders.ENCODERS


def test_any_text_can_be_sent() -> None:
    """A lone surrogate, which UTF-8 cannot have, is replaced; the rest of the body stays."""
    assert json.loads(dump_body({"a": "x\ud800", "b": "é"})) == {"a": "x?", "b": "é"}


def test_a_schema_gets_an_object_as_its_root() -> None:
    """Providers refuse another root; a schema of an object stays as it is."""
    wrapped = wrap_schema(REQUEST).output_schema
    assert wrapped is not None
    assert wrapped["type"] == "object"
    again = replace(REQUEST, output_schema=wrapped)
    assert wrap_schema(again).output_schema == wrapped
    assert wrap_schema(replace(REQUEST, output_schema=None)).output_schema is None


def test_a_cache_key_is_that_of_a_lane() -> None:
    """Each lane of each session has its own, without their ids."""
    key = make_cache_key("session-1", "default")
    assert key == make_cache_key("session-1", "default")
    assert len({key, make_cache_key("session-2", "default"), make_cache_key("session-1", "other")}) == 3
    assert "session" not in key
