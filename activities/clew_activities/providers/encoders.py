"""The encoders by their names: what encodes a model call again, to compare it with what its provider received. Pure.

A recipe names the encoder and its version, with the SHA-256 of the body. An encoder that begins to write other bytes
for the same call gets a new version: then the audit says that it cannot compare, instead of that something is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic_core import PydanticSerializationError, to_json

from clew_activities.providers.answer_object import is_object_schema, make_object_schema
from clew_activities.providers.anthropic.provider import make_encoder
from clew_activities.providers.bedrock.provider import Bedrock
from clew_activities.providers.dialects import DIALECTS, STRICT, VERTEX
from clew_activities.providers.google.provider import Google
from clew_activities.providers.interface import ModelRequest, Provider
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.request_media import TEXTS_ALONE, MediaForms, TakesMedia, choose_media
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.payloads import SentRequest

_URL = "http://localhost"

ENCODERS: Mapping[str, Callable[[str, str | None], Provider]] = {
    "anthropic": lambda name, dialect: make_encoder(name, _URL, dialect),
    "bedrock": lambda name, _dialect: Bedrock(name, _URL),
    "google": lambda name, dialect: Google(name, _URL, is_vertex=dialect == VERTEX.name),
    "openai-chat": lambda name, dialect: OpenAI(name, _URL, DIALECTS.get(dialect or "", STRICT)),
    "openai-responses": lambda name, _dialect: Responses(name, _URL),
}
"""Makes the provider of an encoder, by the provider's name and its dialect. Its URL is not in a body."""


def dump_body(body: dict[str, Any]) -> bytes:
    """Write a request's body as JSON, with lone surrogates replaced."""
    try:
        return to_json(body, inf_nan_mode="constants")
    except PydanticSerializationError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def make_cache_key(session_id: str, context_ref: str) -> str:
    """Make the cache key of a lane: its calls' contexts have a common prefix. It reveals no id."""
    return compute_digest([session_id, context_ref])[:32]


def wrap_schema(request: ModelRequest) -> ModelRequest:
    """Give the answer's schema a root that providers accept: an object."""
    schema = request.output_schema
    if schema is None or is_object_schema(schema):
        return request
    return replace(request, output_schema=make_object_schema(schema))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A request that was encoded again.

    Attributes:
        status: `same`: the body is the one that was sent; `different`: it is not; `other_encoder`: this release has
            another version of the encoder, or does not have it.
        problem: What differs.
    """

    status: Literal["same", "different", "other_encoder"]
    problem: str | None = None


def list_needed_blobs(request: ModelRequest, provider_name: str, sent: SentRequest) -> list[str]:
    """List the digests of the blobs whose bytes are needed to encode a model call again."""
    make = ENCODERS.get(sent.encoder.partition("/")[0])
    provider = make(provider_name, sent.dialect) if make else None
    return list(choose_media(request, get_forms(provider, request.model)).blobs) if provider else []


def get_forms(provider: Provider, model: str) -> MediaForms:
    """Return what a provider takes of images, recordings and files."""
    return provider.get_media_forms(model) if isinstance(provider, TakesMedia) else TEXTS_ALONE


def compare_request(request: ModelRequest, provider_name: str, sent: SentRequest) -> Comparison:
    """Encode a model call again, and compare its body with the digest of the one that was sent.

    Raises:
        ProviderError: The encoder refuses the request.
    """
    name, _, _ = sent.encoder.partition("/")
    make = ENCODERS.get(name)
    if make is None:
        return Comparison("other_encoder", f"the encoder {sent.encoder!r} is not one of Clew's own")
    encoded = make(provider_name, sent.dialect).encode(wrap_schema(request))
    if encoded.encoder != sent.encoder:
        return Comparison("other_encoder", f"it was encoded by {sent.encoder}; this release has {encoded.encoder}")
    digest = hashlib.sha256(dump_body(encoded.body)).hexdigest()
    if digest == sent.digest:
        return Comparison("same")
    return Comparison("different", f"{sent.digest!r} is recorded, but the entries give {digest!r}")
