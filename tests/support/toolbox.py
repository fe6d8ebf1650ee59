"""Tools for tests."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from temporalio import activity

from clew import ToolContext, tool


class Gate:
    """An event that tests and tools wait for, each of them on an event loop of its own."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: list[Future[None]] = []
        self._lock = threading.Lock()

    def set(self) -> None:
        """Let everybody through."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(None)

    def block(self) -> None:
        """Hold the thread until the gate is open."""
        self._opening().result()

    async def wait(self) -> None:
        """Back when the gate is open."""
        await asyncio.wrap_future(self._opening())

    def _opening(self) -> Future[None]:
        one: Future[None] = Future()
        with self._lock:
            if self._is_open:
                one.set_result(None)
            else:
                self._waiting.append(one)
        return one


_gates: dict[str, Gate] = {}


def gate(name: str) -> Gate:
    """The gate of a name."""
    return _gates.setdefault(name, Gate())


_gate = gate
"""Under a name that no parameter of a tool hides."""


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool
async def wait_for(gate: str) -> str:
    """Answers when a gate is opened."""
    await _gate(gate).wait()
    return f"{gate} is open"


@tool
async def open_gate(gate: str) -> str:
    """Opens a gate."""
    _gate(gate).set()
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
    _gate(f"{gate}-started").set()
    try:
        await asyncio.Event().wait()
    finally:
        _gate(f"{gate}-cancelled").set()
    return "never"


@tool
async def ignore_cancel(gate: str) -> str:
    """Opens a gate when it starts, and ends when another one opens, whoever cancels it."""
    _gate(f"{gate}-started").set()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await _gate(gate).wait()
    return "at my own time"


@tool(requires_approval=True)
def guarded() -> str:
    """Needs somebody's word."""
    return "done"


@tool(idempotent=False)
def pay(folder: str, cents: int) -> str:
    """Pays, and notes it in a ledger. A large payment returns once somebody puts a file `release` there."""
    place = Path(folder)
    with (place / "ledger").open("a") as ledger:
        ledger.write(f"{cents}\n")
    while cents > 100 and not (place / "release").exists():
        if activity.is_cancelled():
            (place / "stop").touch()
        time.sleep(0.02)
    return f"paid {cents}"


@tool(idempotent=False)
async def pay_once(folder: str) -> str:
    """Notes that it has begun, and never ends by itself."""
    with (Path(folder) / "started").open("a") as started:
        started.write("begun\n")
    await asyncio.Event().wait()
    return "paid"


@tool
async def hang_in_a_thread(folder: str) -> str:
    """Notes in a folder that it has begun, and gives a thread something that never ends."""
    (Path(folder) / "started").touch()
    await asyncio.to_thread(threading.Event().wait)
    return "never"


@tool
async def block(gate: str) -> str:
    """Opens a gate when it starts, and blocks its event loop until another one opens."""
    _gate(f"{gate}-started").set()
    _gate(gate).block()
    return "at last"


@tool
async def tell_and_wait(gate: str) -> str:
    """Opens a gate when it starts, and answers when another one opens."""
    _gate(f"{gate}-started").set()
    await _gate(gate).wait()
    return f"{gate} is open"
