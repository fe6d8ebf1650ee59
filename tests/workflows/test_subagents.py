"""Subagents on a real server: a tool call starts a session of an agent, and its answer is the result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from clew import Agent, Clew, Session
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from tests.support.deployments import make_client, run_deployment
from tests.support.hostile_input import is_harm
from tests.support.rolling import list_runs, make_id, wait_until
from tests.support.stack import Stack, get_last_message


def delegate(*tasks: str, tool: str = "helper") -> Script:
    """A model that gives tasks to a subagent, and then repeats their results."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            calls = [ToolCall(tool, {"task": task}, f"c{number}") for number, task in enumerate(tasks)]
            return Reply(tool_calls=calls)
        return Reply(" | ".join(m["content"] for m in body["messages"] if m["role"] == "tool"))

    return script


def echo(body: dict[str, Any]) -> Reply:
    return Reply(f"done: {get_last_message(body)['content']}")


async def read_results(session: Session) -> list[Mapping[str, Any]]:
    """Read the payloads of the tool results."""
    return [entry.payload for entry in await session.entries() if entry.payload.get("role") == "tool"]


async def test_two_subagents_work_in_parallel(stack: Stack) -> None:
    """Each has a session of its own, whose thread can be read when it is over; the Temporal UI shows its parent."""
    clew = make_client(stack)
    both = asyncio.Barrier(2)

    async def work(body: dict[str, Any]) -> Reply:
        await both.wait()
        return echo(body)

    helper = Agent("helper", model=stack.add_model(work))
    boss = Agent("boss", model=stack.add_model(delegate("one", "two")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss", metadata={"customer": "4711"})
        request = await session.message("go")
        assert await request.answer() == "done: one | done: two"
        results = await read_results(session)
        for number, result in enumerate(sorted(results, key=lambda result: result["tool_call_id"]), 1):
            child_id = f"{session.id}.tool-{number}"
            assert (result["subagent"]["session_id"], result["subagent"]["agent"]) == (child_id, "helper")
            assert result["subagent"]["usage"]["model_calls"] == 1
            described = await clew.temporal.get_workflow_handle(child_id).describe()
            assert described.parent_id == session.id
            child = clew.session(child_id)
            await wait_until_closed(clew, child_id)
            assert [entry.kind for entry in await child.entries()] == [
                "config", "ai_message", "ai_message", "run", "session",
            ]  # fmt: skip
        status = await session.status()
        assert status.subagents == []
        assert status.subagent_usage is not None
        assert (status.usage.model_calls, status.subagent_usage.model_calls) == (2, 2)
        outcome = await request.result()
        assert outcome.subagent_usage == status.subagent_usage
        await assert_no_harm(clew, session.id)


async def assert_no_harm(clew: Clew, session_id: str) -> None:
    """Assert that no workflow task of the session and of its subagents has failed."""
    for run_id in await list_runs(clew, session_id):
        history = await clew.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        assert not [event for event in history.events if is_harm(event)]
        for event in history.events:
            if event.HasField("start_child_workflow_execution_initiated_event_attributes"):
                await assert_no_harm(
                    clew, event.start_child_workflow_execution_initiated_event_attributes.workflow_id
                )


async def wait_until_closed(clew: Clew, session_id: str) -> None:
    async def is_closed() -> bool:
        described = await clew.temporal.get_workflow_handle(session_id).describe()
        return described.close_time is not None

    await wait_until(is_closed)
