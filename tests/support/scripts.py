"""Scripts of models for several test modules."""

from __future__ import annotations

from typing import Any

from clew.local import Reply, ToolCall
from tests.support.stack import get_last_message


def reply_as_told(body: dict[str, Any]) -> Reply:
    """Call `add` twice if the user says so, reply with JSON if a form is wanted, else with the number of messages."""
    newest = get_last_message(body)
    if newest["role"] == "user" and "add" in newest["content"]:
        return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
    return Reply(
        "{}" if "form" in newest["content"] else f"I read {len(body['messages'])} messages · " + "words " * 20
    )
