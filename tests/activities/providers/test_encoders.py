"""A model call is encoded again from its recipe, and compared with what its provider received."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from clew_activities.providers.dialects import DIALECTS, VERTEX
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


BODIES = Path(__file__).with_name("encoded_bodies.json")
"""The digests of bodies, by encoder and version, dialect and model."""
MODELS = {
    "anthropic": ("claude-sonnet-4-5", "claude-opus-4-6", "claude-sonnet-5-5", "other"),
    "bedrock": ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-pro-v1:0", "openai.gpt-oss-120b-1:0"),
    "google": ("gemini-3-pro", "gemini-2.5-flash"),
    "openai-chat": ("gpt-5", "gpt-4.1", "o3", "deepseek-v4-pro", "kimi-k2-thinking", "qwen3", "other"),
    "openai-responses": ("gpt-5.6-sol", "o3", "gpt-4.1"),
}


DIALECTS_OF = {"google": (VERTEX.name,), "anthropic": ("1h",)}
"""The dialects of encoders that have another one beside their usual one."""


def make_conversation(model: str) -> ModelRequest:
    """Make a request with all that encoders change: options, tools, a loop of another model's, texts in a row."""
    call: Any = {"id": "tool00001", "name": "add", "arguments": {"b": 2, "a": 1}}
    messages: Any = (
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Summary of earlier conversation:\nhi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Add."},
        {"role": "user", "content": "Now."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "tool00001", "name": "add"},
        {"role": "user", "content": "And?"},
    )
    options = ModelOptions(
        max_output_tokens=3000,
        temperature=0.3,
        top_p=0.9,
        reasoning_effort="medium",
        verbosity="low",
        service_tier="flex",
        stop=("END",),
        seed=7,
    )
    return replace(REQUEST, model=model, messages=messages, options=options, provider_tools=("web_search",))


def compute_bodies() -> dict[str, str]:
    """Compute the digest of the conversation's body for each encoder, dialect and model."""
    bodies: dict[str, str] = {}
    for encoder, make in ENCODERS.items():
        dialects = [None, *(DIALECTS if encoder == "openai-chat" else DIALECTS_OF.get(encoder, ()))]
        for dialect, model in product(dialects, MODELS[encoder]):
            encoded = make("someone", dialect).encode(wrap_schema(make_conversation(model)))
            name = " ".join((encoded.encoder, dialect or "-", model))
            bodies[name] = hashlib.sha256(dump_body(encoded.body)).hexdigest()
    return bodies


def test_the_bytes_of_a_version_never_change() -> None:
    """Audits compare calls of earlier releases with what this one encodes.

    If this fails, raise the version of each encoder that is named (its `_ENCODER`), and write the file anew with
    `python -m tests.activities.providers.test_encoders`. Before the first release the version may stay.
    """
    assert compute_bodies() == json.loads(BODIES.read_text())


if __name__ == "__main__":
    BODIES.write_text(json.dumps(compute_bodies(), indent=1, sort_keys=True) + "\n")
