"""Work that grows with a text: in a thread if the text is long, so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_INLINE_SIZE = 16 * 1024
"""Longest text, in characters, that is worked on without a thread. To tokenize it takes about 5 ms."""


async def offload(size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that works on a text of this size."""
    if size <= MAX_INLINE_SIZE:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
