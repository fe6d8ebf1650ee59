"""The client of AG-UI 1.0 from npm, which verifies the order of all events."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest

from tests.support.npm import install_packages, run_node
from tests.support.serving import run_service
from tests.support.serving_chats import SHOW_MAP, answer_chat
from tests.support.stack import Stack

SOURCE = Path(__file__).with_name("ag_ui")


@pytest.mark.slow
async def test_the_client_from_npm(stack: Stack, tmp_path: Path) -> None:
    """A reply, two approvals and a tool of the client's that wait together, and the messages in the end."""
    install_packages(SOURCE, tmp_path)
    name = f"npm-{uuid.uuid4().hex}"
    async with run_service(stack.clew) as served:
        session = await stack.clew.open(
            served.scope(name),
            model=stack.add_model(answer_chat),
            tools=["guarded", "order"],
            external_tools=[SHOW_MAP],
        )

        async def answer_order() -> None:
            async for event in session.follow(0):
                if event.type == "result_required" and event.name == "order":
                    await session.submit_tool_result(event.tool_call_id, "ordered")

        ordering = asyncio.create_task(answer_order())
        try:
            seen = json.loads(await run_node(tmp_path / "run.mjs", served.address, served.token, name))
        finally:
            ordering.cancel()
    assert seen["errors"] == []
    assert seen["hello"] == "You said hello"
    assert (seen["interrupts"], seen["pending"], seen["ended"]) == ([2], 1, "success")
    assert sorted(seen["roles"]) == ["assistant", "assistant", "tool", "tool", "tool", "tool", "user"]
