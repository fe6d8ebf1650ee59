"""The way of a turn: how much of the code a plain message passes on its way to its answer. The numbers only fall."""

from __future__ import annotations

import asyncio

from clew_workflows.contract import ContextQuery
from clew_workflows.session import views
from tests.support.session_harness import SessionHarness
from tests.support.stack import Stack, make_client, run_deployment
from tests.support.traces import Trace

PURE = {"calls": 348, "functions": 176, "modules": 31}
"""Bounds of the pure part: the decision of a message, the context of its call, and the decision of the reply."""
WHOLE = {"calls": 1350, "functions": 590, "modules": 97}
"""Bounds of a turn on a server, from the client's call to its answer: client, workflow and activity.

Some calls depend on how long things take: the bounds are a little above the numbers of a quiet turn.
"""
QUIET_SECONDS = 0.5
"""Time after which a turn has nothing left to do."""


def measure(trace: Trace) -> dict[str, int]:
    return {"calls": trace.calls, "functions": len(trace.functions), "modules": len(trace.modules)}


def list_exceeded(measured: dict[str, int], bounds: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in measured.items() if count > bounds[name]}


def test_the_pure_part_of_a_turn() -> None:
    """The third plain turn of a session: the first ones fill caches."""
    session, trace = SessionHarness(tools=()), Trace("workflows/clew_workflows")
    session.compares_plan = False
    for _ in range(3):
        with trace.watch(), trace.record():
            session.ask("hello")
            views.build_projection(session.state, session.thread, ContextQuery(call_id=session.call.call_id))
            session.reply("fine")
    assert not list_exceeded(measure(trace), PURE), trace.functions


async def test_a_whole_turn(stack: Stack) -> None:
    """The least of some turns: what happens beside them now and then is none of theirs."""
    trace, client, least = Trace("client/clew", "workflows", "activities"), make_client(stack), dict[str, int]()
    with trace.watch():
        async with run_deployment(stack, client):
            session = await client.open("way-of-a-turn", model=stack.add_model("fine"))
            await session.ask("hello")
            for _ in range(4):
                await asyncio.sleep(QUIET_SECONDS)
                with trace.record():
                    await session.ask("hello")
                    await asyncio.sleep(QUIET_SECONDS)
                measured = measure(trace)
                least = {name: min(count, least.get(name, count)) for name, count in measured.items()}
    assert not list_exceeded(least, WHOLE), trace.functions
