"""The digest of each model call is that of the request that its provider received over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import ContextPolicy, Entry
from clew.local import Reply, ToolCall
from clew_workflows.contract.messages import compute_digest
from tests.support.provider_server import decode_request
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message


async def test_every_digest_is_that_of_what_was_received(stack: Stack) -> None:
    """Recipe, `context(call_id=…)` and the wire agree, over lanes, operations, tools, truncation and schemas."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user" and "add" in newest["content"]:
            return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
        return Reply("{}" if "form" in newest["content"] else f"I read {len(body['messages'])} · {newest['content']}")

    policy = ContextPolicy(max_input_tokens=420, reserve_output_tokens=100)
    session = await stack.open(script, tools=["add"], system_prompt="Be exact.", context_policy=policy)
    for number in range(4):
        await session.ask(f"{number} " + "some words " * 20)
    await session.ask("please add")
    await session.switch_context("draft", op_id="o-1")
    await session.ask("a new lane")
    snapshot = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "indeed"}]
    await session.replace_context(snapshot, op_id="o-2", system_prompt="Be brief.")
    await session.ask("add once more")
    await session.configure(system_prompt="Be kind.", tools=[])
    await session.switch_context("default", op_id="o-3")
    await session.ask("in a form", output_schema={"type": "object"}, context_policy=ContextPolicy(max_messages=3))
    received = stack.list_requests((await session.status()).model)
    replies = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    assert len(replies) == len(received) == 10
    truncated = 0
    for entry, body in zip(replies, received, strict=True):
        seen = await session.context(call_id=entry.refs["call_id"])
        wire = decode_request(body, seen.messages)
        assert seen.messages == wire["messages"]
        assert seen.tool_spec == wire["tool_spec"]
        assert entry.payload["recipe"]["digest"] == seen.meta.digest == compute_digest(wire)
        assert entry.payload["recipe"]["policy_hash"] == seen.meta.policy_hash
        truncated += seen.meta.truncated
    assert truncated > 1, "the budget was small enough to matter"
    call = replies[0].refs["call_id"]
    assert {entry.refs["call_id"] for entry in await session.entries(call_id=call)} == {call}


@pytest.mark.slow
async def test_what_was_received_is_what_any_language_reads(stack: Stack) -> None:
    """`ReadContext` with a plain dict answers each call of a rolled-over session and of a closed one."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user" and "add" in newest["content"]:
            return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
        return Reply("{}" if "form" in newest["content"] else f"I read {len(body['messages'])}" + " words" * 600)

    policy = ContextPolicy(max_input_tokens=4000, reserve_output_tokens=100)
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(
            make_id(), model=stack.add_model(script), tools=["add"], system_prompt="Be exact.", context_policy=policy
        )
        for number in range(15):
            await session.ask(f"{number} " + ("please add " if number % 5 == 4 else "some ") * 150)
        shape = {"type": "object"}
        await session.ask("in a form", output_schema=shape, context_policy=ContextPolicy(max_messages=3))
        model = (await session.status()).model
        assert (await session.status()).first_live_seq > 0
        received = stack.list_requests(model)
        replies = [entry for entry in await session.entries() if "recipe" in entry.payload]
        assert len(replies) == len(received)

        async def check(entry: Entry, body: dict[str, Any]) -> None:
            query = {"session_id": session.id, "call_id": entry.refs["call_id"]}
            read = await clew.temporal.execute_workflow(
                "ReadContext", query, id=make_id(), task_queue=clew.task_queue, result_type=dict
            )
            wire = decode_request(body, read["messages"])
            assert (read["messages"], read["tool_spec"]) == (wire["messages"], wire["tool_spec"])
            assert read.get("output_schema") == wire["output_schema"]
            assert read["meta"]["digest"] == entry.payload["recipe"]["digest"] == compute_digest(wire)

        await asyncio.gather(*(check(*pair) for pair in list(zip(replies, received, strict=True))[::4]))
        await session.close()
        await check(replies[0], received[0])
        await check(replies[-1], received[-1])
