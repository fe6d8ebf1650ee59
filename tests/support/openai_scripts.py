"""Models that the tests of the OpenAI API script."""

from __future__ import annotations

from typing import Any

from clew.local import Reply, ToolCall
from tests.support.stack import get_last_message


def echo(body: dict[str, Any]) -> Reply:
    """Reply with the roles and the texts that the model has read."""
    return Reply(" | ".join(f"{message['role']}: {message['content']}" for message in body["messages"]))


def call_weather(body: dict[str, Any]) -> Reply:
    """Call `get_weather` if the user asks for it, and repeat what else the newest message says."""
    newest = get_last_message(body)
    if newest["role"] == "user" and newest["content"] == "Weather?":
        return Reply(tool_calls=[ToolCall("get_weather", {"city": "Porto"}, "c1")])
    return Reply(f"I read: {newest['content']}")
