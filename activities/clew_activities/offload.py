"""Work that would block the event loop: it runs in a thread if its text is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pydantic_core import to_json

from clew_workflows.contract.payloads import Payload
from clew_workflows.contract.tokens import load_encoding

A = ParamSpec("A")
R = TypeVar("R")
P = TypeVar("P", bound=Payload)

MAX_INLINE_SIZE = 16 * 1024
"""Longest text, in characters, that is worked on without a thread. To tokenize it takes about 5 ms."""


async def offload(size: int, function: Callable[A, R], *args: A.args, **kwargs: A.kwargs) -> R:
    """Call a function that works on a text of this size."""
    if size <= MAX_INLINE_SIZE:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def count_tokens(payload: P, encoding: str) -> tuple[P, int]:
    """Count the tokens of an entry with this payload as committing it would, without its media.

    Activities count, so that no workflow task has to: all sessions share a processor. Returns the payload, which
    records the tokens of its parts, and the tokens of the entry.
    """
    return await offload(len(to_json(payload.as_dict())), payload.count, load_encoding(encoding))
