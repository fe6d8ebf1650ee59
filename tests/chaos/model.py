"""The scripted model: the second word of the newest user message says what it does."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from clew.local import Reply, ToolCall

SUMMARY = "They spoke of thread and labyrinths."


async def reply_as_instructed(body: dict[str, Any]) -> Reply:
    """Reply as the newest user message instructs."""
    messages = body["messages"]
    newest = next((str(m["content"]) for m in reversed(messages) if m["role"] == "user"), "")
    # After a run that failed, its message and the next one are sent as one.
    newest = newest.rpartition("\n\n")[2]
    name, colon, words = newest.partition(": ")
    if not colon:
        return Reply(SUMMARY)
    number, has_results = sum(name.encode()), messages[-1]["role"] == "tool"
    behaviour = words.partition(" ")[0]
    offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
    if not has_results or behaviour == "loop":
        calls = tuple(call for call in _make_calls(behaviour, name, number) if call.name in offered | {"nobody"})
        if calls:
            return Reply("at once" if number % 2 else "", tool_calls=calls)
    if behaviour == "break":
        return Reply("no", status=HTTPStatus.BAD_REQUEST)
    if behaviour == "slow":
        return Reply(f"{name} took its time. " * 20, tokens_per_second=30)
    await asyncio.sleep(number % 5 / 50)
    return Reply(f"{name} was read among {len(messages)} messages")


def _make_calls(behaviour: str, name: str, number: int) -> tuple[ToolCall, ...]:
    match behaviour:
        case "note" | "flaky":
            return (ToolCall(behaviour, {"text": name}),)
        case "charge" | "wire":
            return (ToolCall(behaviour, {"cents": number}),)
        case "both":
            return (
                ToolCall("note", {"text": name}),
                ToolCall("charge", {"cents": number}),
                ToolCall("nap", {"seconds": 1}),
            )
        case "order":
            return (ToolCall("order", {"item": name}), ToolCall("charge", {"cents": number}))
        case "nap":
            return (ToolCall("nap", {"seconds": number % 9}),)
        case "big":
            return (ToolCall("big", {"kilobytes": 200}),)
        case "loop":
            return (ToolCall("note", {"text": name}),)
        case "odd":
            return (ToolCall("nobody", {}), ToolCall("charge", '{"cents": '), ToolCall("note", {"number": "x"}))
        case "delegate":
            return (ToolCall("helper", {"task": f"{name}-task: {('charge', 'note', 'say')[number % 3]} please"}),)
        case _:
            return ()
