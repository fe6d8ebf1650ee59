"""Work that would block the event loop: in a thread if its text is long, in a child process if it needs limits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
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


async def run_child(file: str, data: bytes) -> bytes:
    """Run a Python file in a child process, which limits itself. Returns what it wrote before it ended.

    It ends with this process, and is killed if the caller is cancelled.
    """
    child = _start_child(file)
    # In a thread, which ends with the child: asyncio's subprocesses hang if cancelled at their start.
    reading = asyncio.get_running_loop().run_in_executor(None, child.communicate, data)
    try:
        # Shielded: a thread that is cancelled before it has started would not wait for the killed child.
        output, _ = await asyncio.shield(reading)
    finally:
        child.kill()
    return output


def _start_child(file: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: modules in that file's folder must not shadow the standard library.
        [sys.executable, "-P", file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in a terminal must reach the worker alone.
        start_new_session=True,
    )
