"""A workflow task tokenizes little text, so that it ends in time on a busy machine."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowUpdateStage
from temporalio.worker import Worker

from clew.contract.payloads import ToolMessage
from clew.local import Reply, ToolCall
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.host.intake import MAX_TASK_BYTES, MAX_UNDECIDED, MIN_COST
from clew_workflows.protocol import RolloverThresholds
from tests.support import toolbox
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.tokenizing import Tokenized, record_tokenizing
from tests.support.waiting import wait_until

CALLS = 64
CHARACTERS = 65_000
"""Characters of each result, just under the default `max_tool_result_bytes`."""
OWN_BYTES = 4096
"""Bytes of the texts that a session writes itself in these tests."""
LARGE = "ab c" * 60_000
"""A text that fits a message, and the budget of a workflow task once."""


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> Tokenized:
    return record_tokenizing(monkeypatch)


@pytest.mark.slow
async def test_results_of_tools_are_not_tokenized_in_the_workflow(stack: Stack, tokenized: Tokenized) -> None:
    """64 results of 64 KB may arrive at once: their activities have counted them, with the same result."""

    def script(body: dict[str, Any]) -> Reply:
        calls = tuple(ToolCall("repeat", {"text": "ab c", "count": CHARACTERS // 4}) for _ in range(CALLS))
        return Reply("", tool_calls=calls) if get_last_message(body)["content"] == "go" else Reply("fine")

    session = await stack.open(script, tools=["repeat"], encoding="o200k_base")
    assert await session.ask("go") == "fine"
    assert tokenized.find_largest(session.id) < OWN_BYTES
    results = [entry for entry in await session.entries(kind="ai_message") if entry.payload["role"] == "tool"]
    assert len(results) == CALLS
    counted, tokens = results[0].read(ToolMessage).count(load_encoding("o200k_base"))
    assert (results[0].tokens, results[0].body) == (tokens, counted)


@pytest.mark.slow
@pytest.mark.long
async def test_replies_and_summaries_are_not_tokenized_in_the_workflow(stack: Stack, tokenized: Tokenized) -> None:
    """The activities that get them from a model have counted them."""
    session = await stack.open(lambda _body: Reply(LARGE), encoding="o200k_base")
    assert await session.ask("go") == LARGE
    await session.compact(op_id="shorter", to_seq=(await session.status()).rev - 1)
    assert tokenized.find_largest(session.id) < OWN_BYTES


@pytest.mark.slow
async def test_inputs_that_arrive_at_once_are_tokenized_in_many_tasks(stack: Stack, tokenized: Tokenized) -> None:
    """A worker that was away finds ten signals and six updates. They are taken in order, about one in each task."""
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"), encoding="o200k_base")
    handle = clew.temporal.get_workflow_handle(session.id)
    for number in range(10):
        snapshot = {"messages": [{"role": "user", "content": LARGE}]}
        operation = {"type": "replace", "result_context": snapshot}
        await handle.signal("modify_context", {"op_id": f"op-{number}", "operation": operation})
    asking = [
        asyncio.create_task(
            handle.start_update(
                "message",
                {"content": LARGE, "request_id": f"request-{number}", "on_busy": "interrupt"},
                id=f"update-{number}",
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
            )
        )
        for number in range(6)
    ]
    async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue):
        await asyncio.gather(*asking)
        await session.switch_context("another", op_id="last")
        entries = await session.entries()
        operations = [entry.payload["op_id"] for entry in entries if entry.kind == "ai_context_operation"]
        assert operations[:10] == [f"op-{number}" for number in range(10)]
        assert len([entry for entry in entries if entry.payload.get("role") == "user"]) == 6
    assert tokenized.find_largest(session.id) <= MAX_TASK_BYTES + OWN_BYTES


@pytest.mark.slow
async def test_signals_before_the_start_are_tokenized_in_many_tasks(stack: Stack, tokenized: Tokenized) -> None:
    """Also those that wait for the start of the session are in its thread, in order."""
    queue, model = f"queue-{uuid.uuid4().hex}", stack.add_model("fine")
    handle = await stack.clew.temporal.start_workflow(
        "AgentSession", {"config": {"model": model, "encoding": "o200k_base"}}, id=make_id(), task_queue=queue
    )
    for number in range(10):
        snapshot = {"messages": [{"role": "user", "content": LARGE}]}
        operation = {"type": "replace", "result_context": snapshot}
        await handle.signal("modify_context", {"op_id": f"op-{number}", "operation": operation})
    async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue) as clew:
        session = clew.session(handle.id)
        assert await session.ask("hello") == "fine"
        operations = await session.entries(kind="ai_context_operation")
        assert [entry.payload["op_id"] for entry in operations] == [f"op-{number}" for number in range(10)]
    assert tokenized.find_largest(session.id) <= MAX_TASK_BYTES + OWN_BYTES


@pytest.mark.slow
async def test_thousands_of_signals_are_decided_in_many_tasks(stack: Stack) -> None:
    """Other sessions come between, each of the first ones leaves its entry, in order, and the session goes on.

    One entry has the number of the others.
    """
    queue, count = f"queue-{uuid.uuid4().hex}", 1500
    async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        other = await clew.open(make_id(), model=stack.add_model("fine"))
        assert await session.ask("hello") == await other.ask("hello") == "fine"
    handle = clew.temporal.get_workflow_handle(session.id)
    for first in range(0, count, 50):
        await asyncio.gather(*(handle.signal("steer", {"content": str(n)}) for n in range(first, first + 50)))
    async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue):
        assert await session.ask("again") == await other.ask("again") == "fine"
        refused = await session.entries(kind="input")
        *told, left_out = refused
        decided = len(told)
        assert MAX_UNDECIDED <= decided < count
        assert len({entry.payload["content"] for entry in told}) == decided
        assert left_out.payload["kind"] == "steer"
        assert str(count - decided) in left_out.payload["reason"]
        runs = [
            clew.temporal.get_workflow_handle(session.id, run_id=run) for run in await list_runs(clew, session.id)
        ]
        events = [event for run in runs async for event in run.fetch_history_events()]
        begun = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
        assert begun.count("begin_task") >= MAX_UNDECIDED * MIN_COST // MAX_TASK_BYTES
        await session.close()


@pytest.mark.slow
async def test_results_that_no_activity_has_counted_are_tokenized_in_many_tasks(
    stack: Stack, tokenized: Tokenized
) -> None:
    """A worker that was away finds the results of twelve remote calls. Each is in the thread, with its tokens."""
    returned, results = asyncio.Event(), 0

    @activity.defn(name="return_anything")
    async def return_large(_arguments: dict[str, Any]) -> str:
        nonlocal results
        await returned.wait()
        results += 1
        return "ab c" * 16_000

    def script(body: dict[str, Any]) -> Reply:
        calls = tuple(ToolCall("return_remotely", {"kind": "large"}) for _ in range(12))
        return Reply("", tool_calls=calls) if get_last_message(body)["content"] == "go" else Reply("fine")

    queue, client = f"queue-{uuid.uuid4().hex}", stack.clew.temporal
    async with Worker(client, task_queue=toolbox.OTHER_QUEUE, activities=[return_large]):
        async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue) as clew:
            session = await clew.open(
                make_id(), model=stack.add_model(script), tools=["return_remotely"], encoding="o200k_base"
            )
            request = await session.message("go")

            async def runs_tools() -> bool:
                return (await session.status()).status == "awaiting_tools"

            await wait_until(runs_tools)
        returned.set()

        async def all_returned() -> bool:
            return results == 12

        await wait_until(all_returned)
        async with run_rolling_worker(stack, RolloverThresholds(), task_queue=queue):
            assert (await request.result()).status == "completed"
            entries = await session.entries(kind="ai_message")
    messages = [entry.read(ToolMessage) for entry in entries if entry.payload["role"] == "tool"]
    assert [message.content for message in messages] == ["ab c" * 16_000] * 12
    assert all(message.pieces for message in messages)
    assert tokenized.find_largest(session.id) <= MAX_TASK_BYTES + OWN_BYTES
