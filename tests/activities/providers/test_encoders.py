"""A model call is encoded again from its recipe, and compared with what its provider received."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from clew_activities.providers.encoders import ENCODERS, compare_request, dump_body, make_cache_key, wrap_schema
from clew_activities.providers.interface import ModelRequest
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.payloads import SentRequest

PARAMETERS = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}
REQUEST = ModelRequest(
    model="some-model",
    messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}),
    tools=(
        {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}},
    ),
    options=ModelOptions(max_output_tokens=1000),
    output_schema={"type": "integer"},
    cache_key=make_cache_key("session", "default"),
)

REORDERED = {**PARAMETERS, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def send(encoder: str, request: ModelRequest = REQUEST) -> SentRequest:
    """Encode a request as a worker does before it is sent."""
    encoded = ENCODERS[encoder]("someone", None).encode(wrap_schema(request))
    digest = hashlib.sha256(dump_body(encoded.body)).hexdigest()
    return SentRequest(digest=digest, encoder=encoded.encoder, dialect=encoded.dialect)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_each_encoder_is_found_by_the_name_that_it_gives_itself(encoder: str) -> None:
    """Its requests are the same to the byte."""
    sent = send(encoder)
    assert sent.encoder.partition("/")[0] == encoder
    assert compare_request(REQUEST, "someone", sent).status == "same"


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(
    "changes",
    [
        {"messages": (*REQUEST.messages, {"role": "user", "content": "?"})},
        {"model": "other-model"},
        {"options": ModelOptions(max_output_tokens=1001)},
        {"tools": ({**REQUEST.tools[0], "parameters": REORDERED},)},
        {"output_schema": None},
    ],
    ids=["messages", "model", "options", "order", "schema"],
)
def test_another_request_is_different(encoder: str, changes: dict[str, Any]) -> None:
    """In any part of it; Gemini and Bedrock name the model in the path."""
    changed = replace(REQUEST, **changes)
    in_path = "model" in changes and "model" not in ENCODERS[encoder]("someone", None).encode(REQUEST).body
    expected = "same" if in_path else "different"
    assert compare_request(changed, "someone", send(encoder)).status == expected


@pytest.mark.parametrize("encoder", ENCODERS)
def test_another_version_of_an_encoder_is_not_compared(encoder: str) -> None:
    """It says which version has written the request, and which one is here."""
    comparison = compare_request(REQUEST, "someone", replace(send(encoder), encoder=f"{encoder}/0", digest="0" * 64))
    assert comparison.status == "other_encoder"
    assert f"{encoder}/0" in str(comparison.problem)


def test_an_encoder_of_a_team_is_not_compared() -> None:
    """Its code may not be at hand."""
    assert compare_request(REQUEST, "ours", SentRequest(digest="0" * 64, encoder="ours/3")).status == "other_encoder"


def test_a_body_with_half_a_character_is_sent_and_encoded_again() -> None:
    """A lone surrogate is replaced, each time in the same way."""
    request = replace(REQUEST, messages=({"role": "user", "content": "half \ud83d a smile"},))
    assert compare_request(request, "someone", send("openai-chat", request)).status == "same"
