"""Tools for tests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from clew import ToolContext, tool

_gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    """The event that `wait_for` waits for."""
    return _gates.setdefault(name, asyncio.Event())


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool
async def wait_for(gate: str) -> str:
    """Answers when a gate is opened."""
    await _gates.setdefault(gate, asyncio.Event()).wait()
    return f"{gate} is open"


@tool
async def open_gate(gate: str) -> str:
    """Opens a gate."""
    _gates.setdefault(gate, asyncio.Event()).set()
    return "opened"


@tool
def who_am_i(context: ToolContext) -> dict[str, str | int]:
    """What a tool knows of its call."""
    return {
        "session_id": context.session_id,
        "request_id": context.request_id,
        "tool_call_id": context.tool_call_id,
        "key": context.idempotency_key,
        "attempt": context.attempt,
    }


@tool
def explode() -> str:
    """Raises."""
    raise ValueError("the fuse was lit")


@tool(timeout_seconds=0.2)
async def dawdle() -> str:
    """Never ends by itself."""
    await asyncio.Event().wait()
    return "never"


@tool(timeout_seconds=0.2, idempotent=False)
async def pay_slowly() -> str:
    """Never ends by itself, and must not be begun twice."""
    await asyncio.Event().wait()
    return "paid"


@tool
def flood(size: int) -> str:
    """So many bytes."""
    return "x" * size


@tool
async def linger(folder: str) -> str:
    """Notes in a folder that it has begun, and answers once somebody puts a file `release` there."""
    place = Path(folder)
    with (place / "started").open("a") as started:
        started.write("begun\n")
    while not (place / "release").exists():  # noqa: ASYNC110 - who releases it is another process
        await asyncio.sleep(0.02)
    return "released"


@tool
async def note_cancel(gate: str) -> str:
    """Opens a gate when it starts, and another when it is cancelled."""
    _gates.setdefault(f"{gate}-started", asyncio.Event()).set()
    try:
        await asyncio.Event().wait()
    finally:
        _gates.setdefault(f"{gate}-cancelled", asyncio.Event()).set()
    return "never"


@tool
async def ignore_cancel(gate: str) -> str:
    """Opens a gate when it starts, and ends when another one opens, whoever cancels it."""
    _gates.setdefault(f"{gate}-started", asyncio.Event()).set()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await _gates.setdefault(gate, asyncio.Event()).wait()
    return "at my own time"


@tool(requires_approval=True)
def guarded() -> str:
    """Needs somebody's word."""
    return "done"


@tool(idempotent=False)
async def pay_once(folder: str) -> str:
    """Notes that it has begun, and never ends by itself."""
    with (Path(folder) / "started").open("a") as started:
        started.write("begun\n")
    await asyncio.Event().wait()
    return "paid"
