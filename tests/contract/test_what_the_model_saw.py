"""What the model saw: the digest of each call against what its provider really received over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from clew import ContextPolicy, Entry
from clew.model.canonical import digest
from deploy.local import Reply, ToolCall
from tests.conftest import World, last
from tests.rolling import name, rolling


def decoded(body: dict[str, Any]) -> dict[str, Any]:
    """A provider's request as the contract has it: read back from what was on the wire, and from nothing else."""
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for sent in body["messages"]:
        message = {"role": sent["role"], "content": sent["content"] or ""}
        if calls := sent.get("tool_calls"):
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
                for call in calls
            ]
            names |= {call["id"]: call["name"] for call in message["tool_calls"]}
        if sent["role"] == "tool":
            message |= {"tool_call_id": sent["tool_call_id"], "name": names[sent["tool_call_id"]]}
        messages.append(message)
    form = body.get("response_format")
    return {
        "messages": messages,
        "tool_spec": [
            {name: tool["function"][name] for name in ("name", "description", "parameters")}
            for tool in body.get("tools", [])
        ],
        "output_schema": form["json_schema"]["schema"] if form else None,
    }


async def test_every_digest_is_that_of_what_was_received(world: World) -> None:
    """Over lanes, operations, tools, truncation and schemas: recipe, `context(call_id=…)` and the wire agree."""

    def script(body: dict[str, Any]) -> Reply:
        newest = last(body)
        if newest["role"] == "user" and "add" in newest["content"]:
            return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
        return Reply("{}" if "form" in newest["content"] else f"I read {len(body['messages'])} · {newest['content']}")

    policy = ContextPolicy(max_input_tokens=420, reserve_output_tokens=100)
    session = await world.open(script, tools=["add"], system_prompt="Be exact.", context_policy=policy)
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
    received = world.requests_to((await session.status()).model)
    replies = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    assert len(replies) == len(received) == 10
    truncated = 0
    for entry, body in zip(replies, received, strict=True):
        seen = await session.context(call_id=entry.refs["call_id"])
        wire = decoded(body)
        assert seen.messages == wire["messages"]
        assert seen.tool_spec == wire["tool_spec"]
        assert entry.payload["recipe"]["digest"] == seen.meta.digest == digest(wire)
        assert entry.payload["recipe"]["policy_hash"] == seen.meta.policy_hash
        truncated += seen.meta.truncated
    assert truncated > 1, "the budget was small enough to matter"
    call = replies[0].refs["call_id"]
    assert [entry.refs["call_id"] for entry in await session.entries(call_id=call)] == [call]


async def test_what_was_received_is_what_any_language_reads(world: World) -> None:
    """`ReadContext`, started with a dict, answers each call of a rolled-over session, then of a closed one."""

    def script(body: dict[str, Any]) -> Reply:
        newest = last(body)
        if newest["role"] == "user" and "add" in newest["content"]:
            return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
        return Reply("{}" if "form" in newest["content"] else f"I read {len(body['messages'])}" + " words" * 600)

    policy = ContextPolicy(max_input_tokens=4000, reserve_output_tokens=100)
    async with rolling(world) as clew:
        session = await clew.open(
            name(), model=world.model(script), tools=["add"], system_prompt="Be exact.", context_policy=policy
        )
        for number in range(24):
            await session.ask(f"{number} " + ("please add " if number % 5 == 4 else "some ") * 150)
        shape = {"type": "object"}
        await session.ask("in a form", output_schema=shape, context_policy=ContextPolicy(max_messages=3))
        model = (await session.status()).model
        assert (await session.status()).first_live_seq > 0
        received = world.requests_to(model)
        replies = [entry for entry in await session.entries() if "recipe" in entry.payload]
        assert len(replies) == len(received)

        async def check(entry: Entry, body: dict[str, Any]) -> None:
            asked = {"session_id": session.id, "call_id": entry.refs["call_id"]}
            read = await clew.temporal.execute_workflow(
                "ReadContext", asked, id=name(), task_queue=clew.task_queue, result_type=dict
            )
            wire = decoded(body)
            assert (read["messages"], read["tool_spec"]) == (wire["messages"], wire["tool_spec"])
            assert read.get("output_schema") == wire["output_schema"]
            assert read["meta"]["digest"] == entry.payload["recipe"]["digest"] == digest(wire)

        await asyncio.gather(*(check(*pair) for pair in list(zip(replies, received, strict=True))[::4]))
        await session.close()
        await check(replies[0], received[0])
        await check(replies[-1], received[-1])
