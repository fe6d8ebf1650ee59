"""Tools for tests."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from temporalio import activity

from clew import ToolContext, tool
from clew.tools import external_tool, remote_tool


class Gate:
    """An event that tests and tools wait for, each of them on an event loop of its own."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: list[Future[None]] = []
        self._lock = threading.Lock()

    def set(self) -> None:
        """Open the gate: all waiting threads and tasks continue."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(None)

    def block(self) -> None:
        """Block the thread until the gate is open."""
        self._opening().result()

    async def wait(self) -> None:
        """Wait until the gate is open."""
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


def get_gate(name: str) -> Gate:
    """Get the gate with a name; the first call makes it."""
    return _gates.setdefault(name, Gate())


_gate = get_gate
"""An alias, because tools have a parameter named `gate`."""


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
def who_am_i(context: ToolContext) -> dict[str, Any]:
    """The fields of the call's context."""
    return {
        "session_id": context.session_id,
        "request_id": context.request_id,
        "tool_call_id": context.tool_call_id,
        "key": context.idempotency_key,
        "attempt": context.attempt,
        "agent": context.agent,
        "metadata": context.metadata,
        "request_metadata": context.request_metadata,
    }


@tool
async def report_and_wait(gate: str, context: ToolContext) -> str:
    """Reports its progress, and answers when a gate opens."""
    context.report("half of it", 0.5)
    await get_gate(gate).wait()
    return "all of it"


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
    """Never ends by itself, and must not be started twice."""
    await asyncio.Event().wait()
    return "paid"


@tool
def flood(size: int) -> str:
    """Returns that many bytes."""
    return "x" * size


@tool
async def linger(folder: str) -> str:
    """Notes in a folder that it has begun, and answers once the folder has a file `release`."""
    directory = Path(folder)
    with (directory / "started").open("a") as started:
        started.write("begun\n")
    while not (directory / "release").exists():  # noqa: ASYNC110 - another process releases it
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
    """Opens a gate when it starts, and ignores a cancellation until another gate opens."""
    _gate(f"{gate}-started").set()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await _gate(gate).wait()
    return "at my own time"


@tool(requires_approval=True)
def guarded() -> str:
    """Needs an approval."""
    return "done"


@tool(idempotent=False)
def pay(folder: str, cents: int) -> str:
    """Pays, and notes it in a ledger. A large payment returns once the folder has a file `release`."""
    directory = Path(folder)
    with (directory / "ledger").open("a") as ledger:
        ledger.write(f"{cents}\n")
    while cents > 100 and not (directory / "release").exists():
        if activity.is_cancelled():
            (directory / "stop").touch()
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
    """Notes in a folder that it has begun, and waits for a thread that never ends."""
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


@tool
async def read_page(number: int, size: int) -> str:
    """A page of so many characters: random words, which compress badly."""
    chance = random.Random(number)
    words = ["".join(chance.choices(ascii_lowercase, k=chance.randint(2, 9))) for _ in range(3000)]
    return " ".join(chance.choices(words, k=size // 3))[:size]


@tool
async def repeat(text: str, count: int) -> str:
    """A text, so many times."""
    return text * count


@tool(task_queue="gpu")
def where() -> str:
    """The task queue that the call was taken from."""
    return activity.info().task_queue


_ORDER = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
order = external_tool("order", "Orders an item; the warehouse answers.", _ORDER)
order_soon = external_tool("order_soon", "Orders an item, in a hurry.", _ORDER, timeout_seconds=0.3)
order_guarded = external_tool("order_guarded", "Orders a dear item.", _ORDER, requires_approval=True)
order_later = external_tool("order_later", "Orders an item for later.", _ORDER, timeout_seconds=1.5)


OTHER_QUEUE = "other-workers"
"""The task queue of workers that have nothing of Clew's."""
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_KIND = {
    "type": "object",
    "properties": {"kind": {"type": "string"}},
    "required": ["kind"],
    "additionalProperties": False,
}
describe_remotely = remote_tool(
    "describe_remotely", "Describes its call.", _CITY, task_queue=OTHER_QUEUE, activity="describe"
)
return_remotely = remote_tool(
    "return_remotely", "Returns anything.", _KIND, task_queue=OTHER_QUEUE, activity="return_anything"
)
return_nothing = remote_tool(
    "return_nothing", "Returns nothing.", _KIND, task_queue=OTHER_QUEUE, activity="return_nothing"
)
fail_remotely = remote_tool(
    "fail_remotely", "Fails.", _KIND, task_queue=OTHER_QUEUE, activity="fail", timeout_seconds=0.5
)
retry_remotely = remote_tool(
    "retry_remotely", "Fails once.", _KIND, task_queue=OTHER_QUEUE, activity="fail", retries=2, timeout_seconds=5
)
pay_remotely = remote_tool(
    "pay_remotely", "Pays.", _KIND, task_queue=OTHER_QUEUE, activity="fail", idempotent=False, timeout_seconds=0.5
)
weather = remote_tool(
    "weather", "The weather in a city.", _CITY, task_queue="weather", activity="lookUpWeather", timeout_seconds=60
)
