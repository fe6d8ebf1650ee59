"""The README's agent and backend run as they stand, print what it shows, and it is short."""

from __future__ import annotations

import re
from typing import Any

from clew.local import Reply, ToolCall
from docs.generate import DOCS
from tests.support.page_agents import deploy_agent, run_backend
from tests.support.stack import Stack

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
MAX_BYTES = 9_000


def answer(body: dict[str, Any]) -> Reply:
    """Ask for the refund, and say that it is done."""
    if body["messages"][-1]["role"] == "tool":
        return Reply("Your money is on its way.")
    return Reply(tool_calls=[ToolCall("refund", {"order_id": 1234})])


async def test_the_backend_follows_its_request_and_approves_the_call(stack: Stack) -> None:
    """The agent and the backend of the page, each as it stands: the output is the one that the page shows."""
    agent_code, backend_code = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    async with deploy_agent(stack, agent_code, "support", stack.add_model(answer)) as client:
        assert await run_backend(stack, client, backend_code, "support-4711") == shown


def test_it_is_short() -> None:
    """What a first reader does not need has a page of its own."""
    assert len(README.encode()) < MAX_BYTES
