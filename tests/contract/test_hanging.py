"""Models and tools that hang delay only the sessions that call them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import Session
from clew.local import Reply, ToolCall
from clew_activities.worker import Capacity
from tests.support import toolbox
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS, wait_until

FEW = Capacity(model_calls=2, tool_calls=2, store_calls=2)


async def wait_until_idle(session: Session) -> None:
    async def is_idle() -> bool:
        return (await session.status()).status == "idle"

    await wait_until(is_idle)


@pytest.mark.slow
async def test_hanging_model_calls_leave_room_for_tools_and_the_archive(stack: Stack) -> None:
    """With all model slots taken, tools run, and sessions open, fork, hibernate and thaw."""
    begun: list[int] = []
    release, both = asyncio.Event(), asyncio.Event()

    async def hang(_body: dict[str, Any]) -> Reply:
        begun.append(1)
        if len(begun) == FEW.model_calls:
            both.set()
        await release.wait()
        return Reply("at last")

    async with run_rolling_worker(stack, capacity=FEW) as clew, asyncio.timeout(PATIENCE_SECONDS):
        gate = make_id()
        replies = [Reply(tool_calls=(ToolCall("tell_and_wait", {"gate": gate}),)), Reply("done")]
        busy = await clew.open(
            make_id(), model=stack.add_model(lambda _body: replies.pop(0)), tools=["tell_and_wait"]
        )
        running = await busy.message("use the tool")
        await toolbox.get_gate(f"{gate}-started").wait()
        hanging = [await clew.open(make_id(), model=stack.add_model(hang)) for _ in range(3)]
        requests = [await session.message("hang") for session in hanging]
        await both.wait()
        toolbox.get_gate(gate).set()

        async def has_result() -> bool:
            return "tool" in [entry.payload["role"] for entry in await busy.entries(kind="ai_message")]

        await wait_until(has_result)
        idle = await clew.open(make_id(), model=stack.add_model("fine"))
        branch = await idle.fork(at_seq=0)
        await wait_until_idle(branch)
        await idle.hibernate()
        idle = await clew.open(idle.id)
        await wait_until_idle(idle)
        assert len(begun) == FEW.model_calls, "the third one waits on the server"
        release.set()
        assert [await request.answer() for request in requests] == ["at last"] * 3
        assert await running.answer() == "done"


async def test_a_tool_that_blocks_holds_no_other_session(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """Other sessions and other async tools run, heartbeats arrive, and the log names the tool."""
    gate = make_id()

    def script(body: dict[str, Any]) -> Reply:
        message = get_last_message(body)
        if message["role"] == "tool":
            return Reply(message["content"])
        calls = {"block": ToolCall("block", {"gate": gate}), "open": ToolCall("open_gate", {"gate": make_id()})}
        return Reply(tool_calls=(calls[message["content"]],))

    blocked = await stack.open(script, tools=["block"])
    running = await blocked.message("block")
    await toolbox.get_gate(f"{gate}-started").wait()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            idle = await stack.open("fine")
            assert await idle.ask("hello") == "fine"
            await wait_until(lambda: f"tool 'block' (session {blocked.id!r}" in caplog.text)
            other = await stack.open(script, tools=["open_gate"])
            assert await other.ask("open") == "opened"
    finally:
        toolbox.get_gate(gate).set()
    assert await running.answer() == "at last"
    (call,) = [entry for entry in await blocked.entries(kind="ai_message") if entry.payload["role"] == "tool"]
    assert not call.payload.get("is_error")
