"""Large tool results are stored, shown in part, read on by the model, and not in the history."""

from __future__ import annotations

from typing import Any

import pytest

from clew import (
    ClearToolResults,
    ContextPolicy,
)
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from clew_activities.archive import Archive
from clew_workflows.protocol import RolloverThresholds
from tests.support.encrypted import needs_plain
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.scripts import list_results
from tests.support.stack import Stack, get_last_message

SMALL = {"max_tool_result_bytes": 1000}


def make_reader(size: int, **reading: Any) -> Script:
    """Make a model that calls `flood` or `read_result` on request, and repeats the result."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        match newest["role"], newest["content"]:
            case "user", "flood":
                return Reply(tool_calls=(ToolCall("flood", {"size": size}),))
            case "user", "read on":
                return Reply(tool_calls=(ToolCall("read_result", {"tool_call_id": "tool00001", **reading}),))
            case "tool", text:
                return Reply(text[-100:])
            case _:
                return Reply("fine")

    return script


async def test_a_model_reads_on_in_a_result_that_was_truncated(stack: Stack) -> None:
    """`read_result` is a tool of the session, needs no approval, and answers plain text."""
    session = await stack.open(
        make_reader(100_000, offset=99_990), tools=["flood"], limits={"max_tool_result_bytes": 1000}
    )
    first = await session.ask("flood")
    assert first.endswith("of 100000 bytes are shown; read_result(tool_call_id='tool00001', offset=863) reads on]")
    assert await session.ask("read on") == "xxxxxxxxxx\n[bytes 99990 to 100000 of 100000; this is the end]"
    flooded, read = await list_results(session)
    assert flooded.payload["result"].keys() == {"digest", "bytes", "shown"}
    assert (flooded.payload["result"]["bytes"], flooded.payload["result"]["shown"]) == (100_000, 863)
    assert "result" not in read.payload
    (config,) = await session.entries(kind="config")
    assert [spec["name"] for spec in config.payload["tools"]] == ["flood", "read_result"]
    stored, size = await Archive(stack.store, "default").get_result(session.id, flooded.payload["result"]["digest"])
    assert (stored, size) == (b"x" * 100_000, 100_000)


async def test_only_sessions_with_tools_have_it(stack: Stack) -> None:
    """A session has `read_result` exactly while it has another tool."""
    session = await stack.open("fine")
    await session.configure(tools=["add"])
    await session.configure(tools=["add", "flood"])
    await session.configure(tools=[])
    named = [[spec["name"] for spec in entry.payload["tools"]] for entry in await session.entries(kind="config")]
    assert named == [[], ["add", "read_result"], ["add", "flood", "read_result"], []]


async def test_a_model_reads_again_what_was_cleared(stack: Stack) -> None:
    """The marker says how to read the result; the thread keeps it, and recipes name the cleared ones."""
    policy = ContextPolicy(clear_tool_results=ClearToolResults(keep=0))
    session = await stack.open(make_reader(900, offset=890), tools=["flood"], context_policy=policy)
    await session.ask("flood")
    assert await session.ask("read on") == "xxxxxxxxxx\n[bytes 890 to 900 of 900; this is the end]"
    seen = (await session.context(call_id="call-3")).messages
    assert [message["content"] for message in seen if message["role"] == "tool"] == [
        "[cleared: read_result(tool_call_id='tool00001') reads it again]"
    ]
    flooded, _ = await list_results(session)
    assert flooded.payload["content"] == "x" * 900
    replies = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    assert [entry.payload["recipe"]["cleared_tool_results"] for entry in replies] == [0, 0, 1, 1]


async def test_a_session_whose_policy_clears_has_the_tool_for_it(stack: Stack) -> None:
    """A policy that clears results adds the tool, for as long as it is in force, also for a snapshot's results."""
    clearing = ContextPolicy(clear_tool_results=ClearToolResults(keep=0))

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["content"] == "read on":
            call_id = next(message["tool_call_id"] for message in body["messages"] if message["role"] == "tool")
            return Reply(tool_calls=(ToolCall("read_result", {"tool_call_id": call_id}),))
        return Reply(newest["content"])

    session = await stack.open(script)
    await session.configure(context_policy=clearing)
    call = {"id": "then-1", "name": "look", "arguments": {}}
    await session.replace_context(
        [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "It is blue. " * 30, "tool_call_id": "then-1", "name": "look"},
        ],
        op_id="o-1",
    )
    answer = await session.ask("read on")
    assert answer.startswith("It is blue. It is blue.")
    assert (await session.context(call_id="call-1")).meta.cleared_tool_results == 1
    await session.configure(context_policy=ContextPolicy(clear_tool_results=None))
    named = [[spec["name"] for spec in entry.payload["tools"]] for entry in await session.entries(kind="config")]
    assert named == [[], ["read_result"], []]


@pytest.mark.slow
@needs_plain
async def test_fifty_megabytes_leave_no_trace_in_the_history(stack: Stack) -> None:
    """The store has the result up to its limit; the history has only the part that the model saw."""
    session = await stack.open(make_reader(50_000_000, offset=15_000_000, length=10), tools=["flood"], limits=SMALL)
    await session.ask("flood")
    assert (
        await session.ask("read on")
        == f"{'x' * 10}\n[bytes 15000000 to 15000010 of {16 * 1024 * 1024}; offset=15000010 reads on]"
    )
    history = await stack.clew.temporal.get_workflow_handle(session.id).fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 50_000, "a thousandth of the result"


@pytest.mark.slow
async def test_an_archived_result_is_read_on_in_all_the_same(stack: Stack) -> None:
    """A result whose entry is archived can still be read, also after the session hibernated."""
    often = RolloverThresholds(events=50, bytes=100_000, updates=10, signals=10)
    async with run_rolling_worker(stack, often) as clew:
        model = stack.add_model(make_reader(100_000, offset=99_990))
        session = await clew.open(make_id(), model=model, tools=["flood"], limits=SMALL)
        await session.ask("flood")
        turn = 0
        while (await session.status()).first_live_seq < 4:
            turn += 1
            assert await session.ask(f"turn {turn} {'more words ' * 400}") == "fine"
        assert len(await list_runs(clew, session.id)) > 1
        assert await session.ask("read on") == "xxxxxxxxxx\n[bytes 99990 to 100000 of 100000; this is the end]"
        await session.hibernate()
        again = await clew.open(session.id, model=model)
        assert await again.ask("read on") == "xxxxxxxxxx\n[bytes 99990 to 100000 of 100000; this is the end]"
