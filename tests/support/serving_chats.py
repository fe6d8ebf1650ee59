"""Models and agents for tests of the service's routes for user interfaces and MCP clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from clew import Agent, Clew
from clew.local import Reply, ToolCall
from clew.serve import Key, ServeSettings
from clew_activities.archive import Store
from tests.support.rolling import make_id
from tests.support.serving import Served, run_service
from tests.support.stack import Stack, get_last_message, serve

SHOW_MAP: dict[str, Any] = {
    "name": "show_map",
    "description": "Show a map on the page.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
"""A tool that a page runs itself."""
STORY = "Once upon a time. " * 20


def answer_chat(body: dict[str, Any]) -> Reply:
    """Call what the message names, tell a story slowly, tell the results of tools, or repeat the message."""
    newest = get_last_message(body)
    if newest["role"] == "tool":
        return Reply(f"I read: {newest['content']}")
    match newest["content"]:
        case "guard":
            return Reply(tool_calls=(ToolCall("guarded", {}),))
        case "guard twice":
            return Reply(tool_calls=(ToolCall("guarded", {}, "c1"), ToolCall("guarded", {}, "c2")))
        case "mixed":
            calls = ToolCall("guarded", {}), ToolCall("guarded", {}), ToolCall("show_map", {"city": "Rome"})
            return Reply(tool_calls=(*calls, ToolCall("order", {"item": "tea"})))
        case "cut":
            return Reply("too lo", finish_reason="length")
        case "guard and add":
            return Reply("I ask.", tool_calls=(ToolCall("guarded", {}), ToolCall("add", {"a": 1, "b": 2}, "c2")))
        case "map":
            return Reply(tool_calls=(ToolCall("show_map", {"city": "Rome"}),))
        case "story":
            return Reply(STORY, tokens_per_second=60)
        case "slow story":
            return Reply(STORY, tokens_per_second=15)
        case "long story":
            return Reply("word " * 10_000, tokens_per_second=20)
    return Reply(f"You said {newest['content']}")


@asynccontextmanager
async def run_shop(
    stack: Stack,
    *agents: str,
    keys: Sequence[Key] = (),
    settings: ServeSettings | None = None,
    store: Store | None = None,
) -> AsyncIterator[Served]:
    """Run the service with a key that may use some agents, which have tools that wait; without any, all agents."""
    named = [
        Agent(name, model=stack.add_model(answer_chat), tools=["guarded", "order"]) for name in (agents or ("shop",))
    ]
    clew = Clew(stack.clew.temporal, make_id())
    async with (
        serve(clew, stack.environ, agents=named, store=store or stack.store) as own,
        run_service(own, *keys, settings=settings, agents=agents or None) as served,
    ):
        yield served
