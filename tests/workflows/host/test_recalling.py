"""Recalling at the start of a workflow run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow

from clew.local import Reply, ToolCall
from clew_workflows.host import execution
from clew_workflows.protocol import Effect, Failure, Recall, RolloverThresholds
from clew_workflows.session import carried
from clew_workflows.session.state import State
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@pytest.mark.slow
async def test_a_run_that_is_carried_over_can_be_cancelled_while_the_store_is_away(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow run waits for the store no longer than callers do; its model call waits until the deadline."""
    carry_out: Any = execution.carry_out
    away, recalls = False, 0

    async def unless_away(effect: Effect, time_left: timedelta, state: State) -> Any:
        if away and isinstance(effect, Recall):
            nonlocal recalls
            recalls += 1
            await workflow.sleep(time_left)
            return Failure(type="timeout", message="the store is away", retryable=True)
        return await carry_out(effect, time_left, state)

    def script(body: dict[str, Any]) -> Reply:
        nonlocal away
        # From the next workflow run on, which has to fetch what was said before it.
        away = True
        return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))

    monkeypatch.setattr(execution, "carry_out", unless_away)
    monkeypatch.setattr(carried, "MAX_CARRIED_BYTES", 100)
    monkeypatch.setattr(carried, "RECENT_BYTES", 0)
    async with run_rolling_worker(stack, RolloverThresholds(events=50), workflows=IMPATIENT) as clew:
        session = await clew.open(make_id(), model=stack.add_model(script), tools=["add"])
        request = await session.message("go", max_iterations=100)

        async def has_begun_to_recall() -> bool:
            return recalls > 0

        async with asyncio.timeout(PATIENCE_SECONDS):
            await wait_until(has_begun_to_recall)
            assert len(await list_runs(clew, session.id)) > 1
            await session.cancel()
            assert (await request.result()).status == "cancelled"
            await session._handle.workflow.signal("close")
            assert (await session._handle.workflow.result())["last_seq"] > 0
