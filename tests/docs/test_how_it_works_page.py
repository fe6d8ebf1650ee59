"""The page about how a session works: its code prints the thread that it shows."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from clew.local import Reply, ToolCall
from docs.generate import DOCS
from tests.support.page_agents import deploy_agent, run_backend
from tests.support.stack import Stack

AGENT = '''
from clew import Agent, tool


@tool
def lookup_order(order_id: int) -> str:
    """Look an order up."""
    return "shipped"


support = Agent("support", model="openai:gpt-4o-mini", system_prompt="You help.", tools=[lookup_order])
'''
BACKEND = """
import asyncio

from clew import Clew


async def main() -> None:
    clew = await Clew.connect("localhost:7233")
{}

asyncio.run(main())
"""


def answer(body: dict[str, Any]) -> Reply:
    """Look the order up, and answer."""
    if body["messages"][-1]["role"] == "tool":
        return Reply("It is shipped.")
    return Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 1234})])


async def test_the_thread_has_the_entries_that_the_page_shows(stack: Stack) -> None:
    """A question, a tool call and an answer."""
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    backend = BACKEND.format(textwrap.indent(code, "    "))
    async with deploy_agent(stack, AGENT, "support", stack.add_model(answer)) as client:
        assert await run_backend(stack, client, backend, "support-4711") == shown
