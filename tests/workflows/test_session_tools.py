"""Tools in a session: rounds, failures, results in doubt and limits."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from clew.local import Reply, ToolCall
from clew.session.events import ToolFinished, ToolProgressed, ToolStarted
from clew_workflows.protocol import RolloverThresholds
from tests.support import toolbox
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.scripts import list_kinds, make_tool_script
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until


async def test_tools_of_one_round_run_side_by_side_and_are_shown_in_call_order(stack: Stack) -> None:
    """The first tool ends only when the second has run; the model reads the results in the order of its calls."""
    gate = uuid.uuid4().hex
    calls = (ToolCall("wait_for", {"gate": gate}, "a"), ToolCall("open_gate", {"gate": gate}, "a"))
    session = await stack.open(make_tool_script(*calls), tools=["open_gate", "wait_for"])
    request = await session.message("go")
    assert await request.answer() == f"{gate} is open | opened"
    entries = await session.entries(kind="ai_message")
    ids = [call["id"] for call in entries[1].payload["tool_calls"]]
    assert set(ids) == {entry.payload["tool_call_id"] for entry in entries[2:4]}
    assert len(set(ids)) == 2, "a provider that repeats its ids does not confuse the thread"


async def test_a_request_has_its_tools_and_refs_wherever_it_is_read(stack: Stack) -> None:
    """The model is sent those tools; an archive, a fork and a checkpoint keep the contexts and the refs."""
    async with run_rolling_worker(stack, RolloverThresholds()) as clew:
        calls = {"go": (ToolCall("add", {"a": 1, "b": 2}),)}
        model = stack.add_model(lambda body: Reply("fine", calls.get(get_last_message(body)["content"], ())))
        session = await clew.open(make_id(), model=model, tools=["add", "explode"])
        await session.ask("go", tools=["add"], refs={"mail": "m-1"})
        await session.ask("no tools", tools=[], refs={"mail": "m-2"})
        await session.ask("all tools")
        names = [[tool["function"]["name"] for tool in body.get("tools", ())] for body in stack.list_requests(model)]
        assert names[:3] == [["add", "read_result"], ["add", "read_result"], []]
        assert names[3] == ["add", "explode", "read_result"]
        token = await session.checkpoint()
        fork = await session.fork()
        await session.hibernate()
        restored = await clew.restore(token)
        for kept in (session, fork):
            shown = [await kept.context(call_id=f"call-{number}") for number in range(1, 5)]
            assert [[tool["name"] for tool in call.tool_spec] for call in shown] == names[:4]
        (begun,) = await restored.entries(kind="ai_context_operation")
        snapshot = begun.payload["operation"]["result_context"]["messages"]
        for messages in (await session.transcript(), await fork.transcript(), snapshot):
            refs = [message.get("refs") for message in messages if message["role"] == "user"]
            assert refs == [{"mail": "m-1"}, {"mail": "m-2"}, None]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall("nonsense", {}), "unknown tool 'nonsense'"),
        (ToolCall("add", "not json"), "not a JSON object: not json"),
        (ToolCall("add", {"a": "x", "b": 1}), "invalid arguments: a: Input should be a valid integer"),
        (ToolCall("explode", {}), "ValueError: the fuse was lit"),
        (ToolCall("dawdle", {}), "took longer than 0.2 seconds"),
    ],
)
async def test_what_goes_wrong_in_a_tool_is_read_by_the_model(stack: Stack, call: ToolCall, said: str) -> None:
    """Every failure of a tool is an error result for the model, and the run continues."""
    session = await stack.open(make_tool_script(call), tools=["add", "explode", "dawdle"])
    assert said in await session.ask("go")


async def test_what_must_not_run_twice_and_takes_too_long_is_in_doubt(stack: Stack) -> None:
    """The model reads that the call may have taken effect, and its idempotency key."""
    session = await stack.open(make_tool_script(ToolCall("pay_slowly", {})), tools=["pay_slowly"])
    answer = await session.ask("go")
    assert answer.startswith("in doubt (tool_timeout): it is not known whether this call took effect")
    assert answer.endswith(f"Its idempotency key is {session.id}/tool00001")
    (result,) = [entry for entry in await session.entries() if entry.payload.get("role") == "tool"]
    assert (result.payload["in_doubt"], result.payload["is_error"]) == (True, True)


@pytest.mark.slow
async def test_a_late_result_outlives_a_rollover(stack: Stack) -> None:
    """The tool returns when the workflow run that has called it is over; contexts show what it has said."""
    gate = uuid.uuid4().hex
    replies = [Reply(tool_calls=(ToolCall("ignore_cancel", {"gate": gate}),))]
    model = stack.add_model(lambda _body: replies.pop() if replies else Reply("fine"))
    async with run_rolling_worker(stack, RolloverThresholds(events=50, updates=5)) as clew:
        session = await clew.open(make_id(), model=model, tools=["ignore_cancel"])
        request = await session.message("go")
        await toolbox.get_gate(f"{gate}-started").wait()
        await session.cancel()
        assert (await request.result()).status == "cancelled"
        while len(await list_runs(clew, session.id)) < 2:
            await session.ask("and now?")
        toolbox.get_gate(gate).set()

        async def is_late() -> bool:
            return any(entry.payload.get("late") for entry in await session.entries(kind="ai_message"))

        await wait_until(is_late)
        results = [message["content"] for message in (await session.context()).messages if message["role"] == "tool"]
        assert results == ["at my own time"]


async def test_a_tool_knows_its_call(stack: Stack) -> None:
    """A tool that asks for its context gets the ids of its call and a key that is this call's alone."""
    model = make_tool_script(ToolCall("who_am_i", {}))
    session = await stack.open(model, tools=["who_am_i"], metadata={"customer": "4711"})
    request = await session.message("go", request_id="request-1", metadata={"channel": "mail"})
    answer = await request.answer()
    assert f'"session_id":"{session.id}","request_id":"request-1","tool_call_id":"tool00001"' in answer
    assert f'"key":"{session.id}/tool00001","attempt":1,"agent":null' in answer
    assert '"metadata":{"customer":"4711"},"request_metadata":{"channel":"mail"}' in answer


async def test_the_metadata_can_be_changed(stack: Stack) -> None:
    """The status shows the session's metadata, and tools get it."""
    model = make_tool_script(ToolCall("who_am_i", {}))
    session = await stack.open(model, tools=["who_am_i"], metadata={"customer": "4711"})
    await session.configure(metadata={"plan": "gold"})
    assert (await session.status()).metadata == {"plan": "gold"}
    assert '"metadata":{"plan":"gold"},"request_metadata":{}' in await session.ask("go")


async def test_the_progress_of_tools_is_followed(stack: Stack) -> None:
    """Each call starts, reports and finishes, in this order."""
    gate = toolbox.get_gate("streamed-progress")
    calls = tuple(ToolCall("report_and_wait", {"gate": "streamed-progress"}, f"c{number}") for number in range(2))
    session = await stack.open(make_tool_script(*calls), tools=["report_and_wait"])
    request = await session.message("go", request_id="request-1")
    seen: dict[str, list[object]] = {"tool00001": [], "tool00002": []}
    async for event in request.events():
        if isinstance(event, ToolProgressed):
            seen[event.tool_call_id].append((event.text, event.fraction))
        elif isinstance(event, ToolStarted | ToolFinished):
            seen[event.tool_call_id].append(event.type)
        if all(("half of it", 0.5) in reports for reports in seen.values()):
            gate.set()
    assert all(events[0] == "tool_started" for events in seen.values())
    assert all(events[-1] == "tool_finished" for events in seen.values())
    assert all(("half of it", 0.5) in events for events in seen.values())
    assert await request.answer() == "all of it | all of it"


async def test_a_large_tool_result_enters_the_context_truncated_and_marked(stack: Stack) -> None:
    """A result over its limit is truncated at the limit, with a mark."""
    call = ToolCall("flood", {"size": 100_000})
    session = await stack.open(make_tool_script(call), tools=["flood"], limits={"max_tool_result_bytes": 1000})
    await session.ask("go")
    (result,) = [entry for entry in await session.entries() if entry.payload.get("role") == "tool"]
    assert len(result.payload["content"].encode()) <= 1000
    assert "of 100000 bytes are shown; read_result(" in result.payload["content"]


async def test_at_max_iterations_the_run_ends_with_all_it_has(stack: Stack) -> None:
    """The run is completed, the last call's tools are not run, and their calls are closed."""

    def script(_body: dict[str, Any]) -> Reply:
        return Reply("let me see", tool_calls=(ToolCall("add", {"a": 1, "b": 1}),))

    session = await stack.open(script, tools=["add"], max_iterations=2)
    outcome = await (await session.message("go")).result()
    assert (outcome.status, outcome.termination_reason, outcome.iterations) == ("completed", "max_iterations", 2)
    assert await list_kinds(session) == ["config", "user", "assistant", "tool", "assistant", "tool", "run"]
    closed = (await session.entries())[5]
    assert "not run: the run ended (max_iterations)" in closed.payload["content"]
    assert await session.ask("go on", max_iterations=1), "the thread stays valid input"
