"""A model that calls tools, and the kinds of a session's entries."""

from __future__ import annotations

from typing import Any

from clew.local import Reply, ToolCall
from tests.support.stack import get_last_message


def make_tool_script(*calls: ToolCall) -> Any:
    """A model that asks for tools once, and then says what it read."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=calls)
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        return Reply(" | ".join(results[-len(calls) :]))

    return script


async def list_kinds(session: Any) -> list[str]:
    return [entry.payload.get("role", entry.kind) for entry in await session.entries()]
