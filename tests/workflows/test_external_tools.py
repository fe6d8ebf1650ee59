"""External tools on a real server: rounds that wait for results from outside."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from clew import Session
from clew.contract import PendingExternalCall
from clew.errors import AlreadyAnswered, CallEnded, InvalidInput, TooLarge, UnknownToolCall
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from clew.tools import external_tool
from clew_workflows.protocol import RolloverThresholds
from tests.support.hostile_input import assert_unharmed
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

ITEM = {"item": "tea"}


def call_once(*calls: ToolCall) -> Script:
    """A model that calls tools for the message `go`, and then repeats their results."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user":
            return Reply(tool_calls=calls) if newest["content"] == "go" else Reply("fine")
        return Reply(" | ".join(m["content"] for m in body["messages"] if m["role"] == "tool"))

    return script


async def wait_for_calls(session: Session, count: int = 1) -> list[PendingExternalCall]:
    """Wait until so many external calls are pending, and return them."""

    async def are_pending() -> bool:
        return len((await session.status()).pending_external_calls) == count

    await wait_until(are_pending)
    return (await session.status()).pending_external_calls


async def test_a_round_waits_for_results_from_outside(stack: Stack) -> None:
    """Beside a function and an approval; the status shows each call, and a result counts once."""
    calls = (ToolCall("order", ITEM), ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("order_guarded", ITEM, "c2"))
    session = await stack.open(call_once(*calls), tools=["order", "add", "order_guarded"], request_timeout_seconds=20)
    request = await session.message("go")

    async def is_guarded() -> bool:
        return bool((await session.status()).pending_approvals)

    await wait_until(is_guarded)
    await session.approve("tool00003")
    pending = await wait_for_calls(session, 2)
    assert [(call.tool_call_id, call.name, call.arguments) for call in pending] == [
        ("tool00001", "order", ITEM),
        ("tool00003", "order_guarded", ITEM),
    ]
    receipt = await session.submit_tool_result("tool00003", {"number": 7})
    entry = (await session.entries(from_seq=receipt.seq, limit=1))[0]
    assert (entry.refs["tool_call_id"], entry.payload["content"]) == ("tool00003", '{"number":7}')
    with pytest.raises(AlreadyAnswered):
        await session.submit_tool_result("tool00003", "again")
    with pytest.raises(UnknownToolCall):
        await session.submit_tool_result("tool00009", "whose?")
    with pytest.raises(TooLarge):
        await session.submit_tool_result("tool00001", "x" * 70_000)

    async def waits_for_nothing_else() -> bool:
        return (await session.status()).status == "awaiting_external"

    await wait_until(waits_for_nothing_else)
    await session.submit_tool_result("tool00001", "sold out", is_error=True)
    assert await request.answer() == 'sold out | 3 | {"number":7}'
    await assert_unharmed(stack, session.id)


async def test_a_call_times_out(stack: Stack) -> None:
    """Each call at its own time; the model reads it, and a late result is refused."""
    session = await stack.open(
        call_once(ToolCall("order_soon", ITEM), ToolCall("order", ITEM, "c1")), tools=["order_soon", "order"]
    )
    request = await session.message("go")
    await wait_for_calls(session)
    with pytest.raises(CallEnded):
        await session.submit_tool_result("tool00001", "late")
    await session.submit_tool_result("tool00002", None)
    assert await request.answer() == ("error: tool 'order_soon' timed out: no result came within 0.3 seconds | null")
    await assert_unharmed(stack, session.id)


async def test_a_request_has_no_timeout_while_it_waits_outside(stack: Stack) -> None:
    """Its clock stands still: a call may wait longer than the request may take."""
    session = await stack.open(
        call_once(ToolCall("order_later", ITEM)), tools=["order_later"], request_timeout_seconds=1
    )
    assert "within 1.5 seconds" in await session.ask("go")


async def test_a_cancel_ends_what_waits_outside(stack: Stack) -> None:
    """The call was not answered; the next message works at once."""
    session = await stack.open(call_once(ToolCall("order", ITEM)), tools=["order"])
    request = await session.message("go")
    await wait_for_calls(session)
    await session.cancel()
    assert (await request.result()).status == "cancelled"
    (result,) = [entry for entry in await session.entries() if entry.payload.get("role") == "tool"]
    assert result.payload["content"].startswith("[not answered: the run ended (cancelled)")
    with pytest.raises(CallEnded):
        await session.submit_tool_result("tool00001", "late")
    await assert_unharmed(stack, session.id)


@pytest.mark.slow
async def test_waiting_calls_survive_a_rollover(stack: Stack) -> None:
    """The next workflow run knows them, takes their results, and ends them at the times that they had."""
    async with run_rolling_worker(stack, RolloverThresholds(updates=5)) as clew:
        calls = (ToolCall("order", ITEM), ToolCall("order_later", ITEM, "c1"))
        model = stack.add_model(call_once(*calls))
        session = await clew.open(make_id(), model=model, tools=["order", "order_later"])
        request = await session.message("go", request_id="r")
        before = await wait_for_calls(session, 2)
        for number in range(9):
            await session.steer(f"hurry up {number}")

        async def has_rolled_over() -> bool:
            return len(await list_runs(clew, session.id)) > 1

        await wait_until(has_rolled_over)
        after = (await session.status()).pending_external_calls
        assert [call.expires_at for call in after] == [call.expires_at for call in before][-len(after) :]
        await session.submit_tool_result("tool00001", "sent")
        assert (await request.result()).status == "completed"
        texts = [entry.payload["content"] for entry in await session.entries() if entry.payload.get("role") == "tool"]
        assert sorted(texts) == ["error: tool 'order_later' timed out: no result came within 1.5 seconds", "sent"]


WEATHER = {
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ROME = ToolCall("weather", {"city": "Rome"})


async def test_a_caller_defines_tools_of_its_own(stack: Stack) -> None:
    """The workers do not have them. Wrong arguments are an error that the model reads, and nothing waits for them."""
    script = call_once(ROME, ToolCall("weather", {"town": "Rome"}, "c1"))
    session = await stack.open(script, tools=["add"], external_tools=[WEATHER])
    request = await session.message("go")
    (call,) = await wait_for_calls(session)
    assert (call.name, call.arguments) == ("weather", {"city": "Rome"})
    assert [tool["name"] for tool in (await session.context()).tool_spec] == ["add", "read_result", "weather"]
    await session.submit_tool_result(call.tool_call_id, {"degrees": 21})
    assert await request.answer() == '{"degrees":21} | error: invalid arguments: city: it is missing'
    await assert_unharmed(stack, session.id)


async def test_a_callers_tools_are_changed_and_clashes_refused(stack: Stack) -> None:
    """A schema that is not valid, and the name of a tool of the workers, are refused where they are."""
    session = await stack.open(call_once(ToolCall("clock", {})), tools=["add"], external_tools=[WEATHER])
    clock = external_tool("clock", "The time on the page.", {"type": "object"})
    await session.configure(external_tools=[clock])
    for tool, field in (
        (WEATHER | {"parameters": {"type": "object", "maxProperties": -1}}, "external_tools.0.parameters"),
        (WEATHER | {"name": "add"}, "external_tools.0.name"),
    ):
        with pytest.raises(InvalidInput, match=field):
            await session.configure(external_tools=[tool])
    wrong = await stack.open(external_tools=[WEATHER | {"parameters": {"type": "object", "required": 3}}])
    with pytest.raises(WorkflowFailureError) as failed:
        await stack.clew.temporal.get_workflow_handle(wrong.id).result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "invalid_input"
    assert "external_tools.0.parameters" in failed.value.cause.message
    request = await session.message("go")
    (call,) = await wait_for_calls(session)
    assert call.name == "clock"
    await session.submit_tool_result(call.tool_call_id, "noon")
    assert await request.answer() == "noon"
    await assert_unharmed(stack, session.id)


@pytest.mark.slow
async def test_a_callers_tools_go_on_with_the_session(stack: Stack) -> None:
    """After a hibernation, in a fork, and in a session that is made of a checkpoint."""
    session = await stack.open(call_once(ROME), external_tools=[WEATHER])
    await session.ask("hello")
    token = await session.checkpoint()
    fork = await session.fork(session_id=make_id())
    restored = await stack.clew.restore(token, make_id())
    await session.hibernate()
    woken = await stack.clew.open(session.id)
    for other in (fork, restored, woken):
        request = await other.message("go")
        (call,) = await wait_for_calls(other)
        await other.submit_tool_result(call.tool_call_id, "warm")
        assert await request.answer() == "warm"
        await assert_unharmed(stack, other.id)
