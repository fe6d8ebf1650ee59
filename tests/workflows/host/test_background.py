"""Errors of the session's own code: they fail the workflow task, and a corrected worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import coroutine
from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.local import Reply, ToolCall
from clew_workflows.host.runtime import Runtime
from clew_workflows.protocol import ModelAnswered, ToolReturned
from clew_workflows.session import decisions
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message


@pytest.mark.parametrize("kind", [ModelAnswered, ToolReturned])
async def test_a_session_goes_on_after_an_error_in_a_decision(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """Also if it is a refusal, and also where a tool's result is committed: callers get their answer."""
    take_event: Any = decisions.take_event
    faults = [InvalidInput("a fault")]

    def fail_once(state: Any, event: Any, at: Any) -> Any:
        if isinstance(event, kind) and faults:
            raise faults.pop()
        return take_event(state, event, at)

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
        return Reply("fine")

    monkeypatch.setattr(decisions, "take_event", fail_once)
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model(script), tools=["add"])
        assert await session.ask("one") == "fine"
        assert not faults


def test_coroutines_may_be_closed_where_no_loop_runs() -> None:
    """A worker that stops drops its workflows: what waits for another session's answer notes its end then."""
    loop = asyncio.new_event_loop()
    runtime = Runtime.__new__(Runtime)
    runtime._loop, runtime._settling, runtime.unconfirmed = loop, None, 1

    @coroutine
    def suspend() -> Generator[None, None, None]:
        yield

    async def wait() -> None:
        try:
            await suspend()
        finally:
            runtime.confirm()

    waiting = wait()
    waiting.send(None)
    waiting.close()
    assert runtime.unconfirmed == 0
    loop.close()
