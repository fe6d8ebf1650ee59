"""The official client of the OpenAI API for a service, and a strict check of what it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar

import openai
from openai import BaseModel
from pydantic import TypeAdapter

from tests.support.serving import Served

M = TypeVar("M", bound=BaseModel)

NOT_DECLARED = {"store", "frequency_penalty", "presence_penalty"}
"""Fields that the API sends, and the client's types do not have."""


@asynccontextmanager
async def connect(served: Served, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """Connect the official client to a service: it has a base URL and a key, and nothing else."""
    settings: dict[str, Any] = {
        "api_key": served.token,
        "base_url": f"{served.address}/v1",
        "max_retries": 0,
        **options,
    }
    async with openai.AsyncOpenAI(**settings) as client:
        yield client


def check(sent: M) -> M:
    """Check that what the client was sent is, strictly, of the type that it has made of it. Returns it.

    The client itself validates nothing.
    """
    kind = type(sent)
    valid = _adapt(kind).validate_python(sent.to_dict(mode="json"), strict=False)
    assert not set(_find_extra(valid)) - NOT_DECLARED
    return sent


@cache
def _adapt(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _find_extra(value: Any) -> Iterator[str]:
    """Find the fields that a type does not have."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _find_extra(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from _find_extra(item)
