"""The page about agents: its agents are valid, wait for approvals, fall back, and give work to each other."""

from __future__ import annotations

import sys
import uuid
from types import ModuleType
from typing import Any

import pytest

from clew import Agent, Clew, tool
from clew.testing import Reply, ToolCall, stack
from tests.support.page_code import find_block, run_block

PAGE = "agents.md"


@tool
def lookup_order(order_id: int) -> str:
    """Look up an order."""
    return f"order {order_id} is shipped"


@tool(requires_approval=True)
def refund(order_id: int) -> str:
    """Pay an order back."""
    return f"order {order_id} was paid back"


@tool
def search(text: str) -> str:
    """Search the web."""
    return f"a page about {text}"


async def test_the_first_agent_serves_the_session_that_the_page_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools come from the module that it imports. No server of MCP runs here, so that tool is left out."""
    module = ModuleType("my_package.tools")
    vars(module).update(lookup_order=lookup_order, refund=refund)
    monkeypatch.setitem(sys.modules, "my_package", ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, "my_package.tools", module)
    code = find_block(PAGE, "# my_package/agents.py")
    support = (await run_block(code, {}))["support"]
    assert list(support.require_approval) == ["mcp:tracker/create_issue"]
    code = code.replace(', "mcp:tracker/create_issue"', "").replace('"mcp:tracker/create_issue"', "lookup_order.name")
    support = (await run_block(code, {}))["support"]
    script: list[Reply | str] = [Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 7})]), "It is shipped."]
    async with stack(agents=[support], scripts={"support": script}) as running:
        clew: Clew = running.clew
        opening = find_block(PAGE, "metadata=").replace("support-4711", f"page-{uuid.uuid4().hex}")
        session = (await run_block(opening, {"clew": clew}))["session"]
        request = await session.message("Where is order 7?")
        await running.wait_for_approval(session)
        await run_block(find_block(PAGE, "list_waiting_calls"), {"clew": clew, "session": session})
        assert await request.answer() == "It is shipped."
        status = await session.status()
        assert (status.config["limits"]["max_cost_usd"], status.config["metadata"]) == (1.0, {"user": "4711"})


async def test_a_fallback_answers_and_a_subagent_works() -> None:
    """The first model is overloaded; the outcome names the second one. A subagent's answer is a tool's result."""
    fallen = await run_block(find_block(PAGE, "fallbacks=["), {"Agent": Agent})
    names = {"Agent": Agent, "search": search, "lookup_order": lookup_order}
    agents = await run_block(find_block(PAGE, "as_tool"), names)
    scripts: dict[str, Any] = {
        "support": lambda _request: Reply.error(503, "overloaded"),
        "openai:gpt-4o": "from the fallback",
    }
    async with stack(agents=[fallen["support"]], scripts=scripts) as running:
        session = await running.clew.open("falls-back", agent="support")
        request = await session.message("hello")
        assert await request.answer() == "from the fallback"
        outcome = await request.result()
        assert outcome.fallback
        assert "gpt-4o" in outcome.fallback
    scripts = {
        "support": [Reply(tool_calls=[ToolCall("research", {"task": "tea"})]), "Tea grows in Assam."],
        "researcher": [Reply(tool_calls=[ToolCall("search", {"text": "tea"})]), "Assam"],
    }
    async with stack(agents=[agents["support"]], scripts=scripts) as running:
        session = await running.clew.open("researches", agent="support")
        assert await session.ask("Where does tea grow?") == "Tea grows in Assam."
        assert (await running.read(session)).expect_call("research", task="tea").result == "Assam"
