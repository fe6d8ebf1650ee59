"""Checkpoints that are asked for at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow

from clew import ContextPolicy
from clew_workflows.host import execution
from clew_workflows.protocol import Effect, SignCheckpoint
from clew_workflows.session.state import State
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack

CHECKPOINTS = 10
TOGETHER = timedelta(seconds=0.5)
"""How long a signature waits for the other ones, so that all of them arrive in one workflow task."""


@pytest.mark.slow
async def test_many_large_checkpoints_at_once_are_answered(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, however fast they are signed: ten tokens are too large for one workflow task."""
    carry_out: Any = execution.carry_out
    signed = 0

    async def together(effect: Effect, time_left: timedelta | None, state: State) -> Any:
        answer = await carry_out(effect, time_left, state)
        if isinstance(effect, SignCheckpoint):
            nonlocal signed
            signed += 1
            with suppress(TimeoutError):
                await workflow.wait_condition(lambda: signed == CHECKPOINTS, timeout=TOGETHER)
        return answer

    monkeypatch.setattr(execution, "carry_out", together)
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(
            make_id(),
            model=stack.add_model("fine"),
            system_prompt="word " * 13_000,
            context_policy=ContextPolicy(max_input_tokens=128_000, reserve_output_tokens=1000),
        )
        await session.replace_context([{"role": "user", "content": "word " * 52_000}], op_id="large")
        tokens = await asyncio.gather(*(session.checkpoint() for _ in range(CHECKPOINTS)))
        assert sum(map(len, tokens)) > 4 * 1024 * 1024
        assert await session.ask("and now?") == "fine"
