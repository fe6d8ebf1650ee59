"""Work on long texts runs in a thread."""

from __future__ import annotations

import threading

from clew_activities.offload import MAX_INLINE_SIZE, offload


async def test_only_long_texts_need_a_thread() -> None:
    """A short text is worked on at once, a long one in a thread; arguments and results pass through."""
    here = threading.get_ident()
    assert await offload(MAX_INLINE_SIZE, threading.get_ident) == here
    assert await offload(MAX_INLINE_SIZE + 1, threading.get_ident) != here
    assert await offload(1, int, "ff", base=16) == 255
