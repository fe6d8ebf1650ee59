"""Callers that wait for a request: how many, how long, and what their waits leave in the history."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowUpdateStage

from clew import Session
from clew.contract.limits import MAX_WAITERS
from clew_workflows.host import answers
from clew_workflows.host.answers import Waiters
from clew_workflows.host.execution import TimeLimits
from clew_workflows.protocol import RolloverThresholds
from tests.support.other_workflows import IMPATIENT
from tests.support.rolling import SlowModel, make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until


async def start_waiting(session: Session, update: str, **command: str) -> asyncio.Task[dict[str, Any]]:
    """Wait for a request, as a Temporal client in any language does. The session has the update when this returns."""
    accepted = await session._handle.workflow.start_update(
        update, command, wait_for_stage=WorkflowUpdateStage.ACCEPTED, result_type=dict
    )
    return asyncio.create_task(accepted.result())


async def test_the_oldest_wait_gives_way(stack: Stack) -> None:
    """Six callers wait. A seventh is answered at once, until the oldest has waited long: then that one is."""
    model = SlowModel()
    async with run_rolling_worker(stack, workflows=IMPATIENT, thresholds=RolloverThresholds()) as clew:
        session = await clew.open(make_id(), model=stack.add_model(model))
        await session.configure(metadata={"a": "b"})
        oldest = await start_waiting(session, "message", content="hi", request_id="r")
        await model.wait_for_call()
        waiting = [await start_waiting(session, "await_request", request_id="r") for _ in range(MAX_WAITERS - 1)]
        refused: list[asyncio.Task[dict[str, Any]]] = []

        async def gives_way() -> bool:
            newest = await start_waiting(session, "await_request", request_id="r")
            ended, _ = await asyncio.wait({newest, oldest}, return_when=asyncio.FIRST_COMPLETED)
            (refused if newest in ended else waiting).append(newest)
            return oldest.done()

        await wait_until(gives_way)
        assert {task.result()["status"] for task in (oldest, *refused)} == {"running"}
        model.release()
        assert {outcome["status"] for outcome in await asyncio.gather(*waiting)} == {"completed"}


def test_of_waits_of_the_same_age_the_first_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, which replays the history, answers the same callers in the same order."""
    now = 0.0
    monkeypatch.setattr(workflow, "time", lambda: now)
    monkeypatch.setattr(answers, "MAX_WAITERS", 40)
    limits = TimeLimits(caller_patience=timedelta(seconds=1))
    runtime: Any = SimpleNamespace(waits=limits, settle_soon=lambda: None)
    waiters = Waiters(runtime)
    same = [waiters.enter() for _ in range(40)]
    now = 2.0
    for count in range(1, 41):
        assert not waiters.enter().expired
        assert [waiter.expired for waiter in same] == [True] * count + [False] * (40 - count)
