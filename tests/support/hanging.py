"""What the tasks of a test wait for that hangs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any


def describe_tasks() -> str:
    """Describe where each task of this process waits, from its own function to the innermost one."""
    tasks = [value for value in gc.get_objects() if type(value) is asyncio.Task and not value.done()]
    return "\n".join(f"{task.get_name()}: {' > '.join(_list_places(task.get_coro()))}" for task in tasks)


def _list_places(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:
            yield type(awaited).__name__
            return
        if frame := getattr(awaited, f"{kind}_frame"):
            yield f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
