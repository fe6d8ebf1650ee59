"""Pins of archived entries: a session shows its current context right after them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew import Clew, ContextPolicy, Session
from clew.errors import InvalidOperation
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from clew_workflows.contract.content import get_text
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

NARROW = ContextPolicy(max_input_tokens=3000, reserve_output_tokens=100, keep_last_turns=1)


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    async with run_rolling_worker(stack) as clew:
        yield clew


async def open_archived_session(stack: Stack, clew: Clew, script: Script | str = "fine", **config: Any) -> Session:
    """A session whose first messages are in the archive alone."""
    session = await clew.open(
        make_id(), model=stack.add_model(script), system_prompt="Be brief.", context_policy=NARROW, **config
    )
    for turn in range(30):
        await session.ask(f"turn {turn} " + "many words " * 250)
        if (await session.status()).first_live_seq > 10:
            return session
    raise AssertionError("nothing was archived")


async def query_context(session: Session) -> dict[str, Any]:
    """Query the current context from the session itself, without the archive."""
    answer: dict[str, Any] = await session._handle.workflow.query("context", {})
    return answer


async def test_an_archived_pin_is_in_the_current_context_at_once(stack: Stack, clew: Clew) -> None:
    """The query answers it right after the receipt, and the next call sees it."""
    session = await open_archived_session(stack, clew)
    assert (await session.pin(1, op_id="o-1")).status == "applied"
    shown = await query_context(session)
    assert shown["messages"][1]["content"].startswith("turn 0 ")
    await session.ask("and now?")
    (*_, newest) = stack.list_requests((await session.status()).model)
    assert newest["messages"][1]["content"].startswith("turn 0 ")
    await session.unpin(1, op_id="o-2")
    assert not any(message["content"].startswith("turn 0 ") for message in (await query_context(session))["messages"])


@pytest.mark.slow
async def test_a_pin_that_waited_for_a_run_is_there_when_it_has_ended(stack: Stack, clew: Clew) -> None:
    """By update or by signal: soon after the run's outcome the query answers, with the pinned message in it."""
    session = await open_archived_session(stack, clew)
    request = await session.message("go on")
    handle = session._handle.workflow
    operation = {"op_id": "o-1", "operation": {"type": "pin", "seqs": [1]}}
    await handle.signal("modify_context", operation)
    await request.result()
    receipt = await handle.execute_update("submit_context_operation", operation, result_type=dict)
    assert receipt["status"] == "duplicate"
    shown = await session.context()
    assert any(get_text(message["content"]).startswith("turn 0 ") for message in shown.messages)


@pytest.mark.slow
async def test_a_pin_of_what_is_no_message_breaks_no_context(stack: Stack, clew: Clew) -> None:
    """A session accepts a pin of an archived entry that is no message; contexts ignore the pin."""
    session = await open_archived_session(stack, clew)
    before = await query_context(session)
    assert (await session.pin(0, 3, op_id="o-1")).status == "applied"
    assert (await query_context(session))["meta"]["digest"] == before["meta"]["digest"]
    assert await session.ask("and now?") == "fine"
    assert (await session.pin(1, op_id="o-2")).status == "applied"
    assert (await query_context(session))["messages"][1]["content"].startswith("turn 0 ")
    with pytest.raises(InvalidOperation, match="entry 9999 is no message"):
        await session.pin(9999, op_id="o-3")
    await session.hibernate()
    again = await clew.open(session.id)
    assert await again.ask("once more") == "fine"
    assert any(message["content"].startswith("turn 0 ") for message in (await query_context(again))["messages"])
    body = stack.list_requests((await again.status()).model)[-1]
    assert get_last_message(body)["content"] == "once more"


@pytest.mark.slow
async def test_a_lane_that_is_taken_up_again_can_be_told_at_once(stack: Stack, clew: Clew) -> None:
    """After a switch to a lane that was left long ago the query answers right away."""
    session = await open_archived_session(stack, clew)
    await session.ask("the last turn " + "many words " * 250)
    await session.switch_context("side", op_id="o-1")
    for turn in range(30):
        await session.ask(f"aside {turn} " + "many words " * 250)
    await session.switch_context("default", op_id="o-2")
    shown = await query_context(session)
    assert shown["messages"][-2]["content"].startswith("the last turn ")


@pytest.mark.slow
async def test_a_pin_right_before_an_approval_is_waited_for_wedges_nothing(stack: Stack, clew: Clew) -> None:
    """A request may wait for an approval before the session has fetched the pinned entry."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        asks = newest["role"] == "user" and newest["content"] == "add"
        return Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),)) if asks else Reply("fine")

    session = await open_archived_session(stack, clew, script, tools=["add"], require_approval=["add"])
    operation = {"op_id": "o-1", "operation": {"type": "pin", "seqs": [1]}}
    await session._handle.workflow.signal("modify_context", operation)
    request = await session.message("add")

    async def waits() -> bool:
        return (await session.status()).status == "awaiting_approval"

    await wait_until(waits)
    (call,) = (await session.status()).pending_approvals
    await session.approve(call.tool_call_id)
    assert (await request.result()).status == "completed"
    assert (await query_context(session))["messages"][1]["content"].startswith("turn 0 ")
