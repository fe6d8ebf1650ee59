"""Agents on the command line."""

from __future__ import annotations

from clew import Agent
from tests.support.command_line import run_clew
from tests.support.stack import Stack, make_client, run_deployment


async def test_a_session_is_opened_with_an_agent(stack: Stack) -> None:
    """`status` shows the agent. Options whose value differs in a session that exists are named on stderr."""
    clew, agent = make_client(stack), Agent("support", model=stack.add_model("fine"), version="1.2")
    options = {"address": stack.server.address}
    async with run_deployment(stack, clew, agent):
        queue = ("--task-queue", clew.task_queue)
        opened = await run_clew("ask", "cli-agent", "Hi", "--agent", "support", "--pin", *queue, **options)
        assert (opened.code, opened.out, opened.err) == (0, "fine\n", "")
        status = await run_clew("status", "cli-agent", **options)
        assert "support · 1.2 · " in status.out
        again = await run_clew("ask", "cli-agent", "Hi", "--agent", "billing", "--pin", *queue, **options)
        assert (again.code, again.out) == (0, "fine\n")
        assert "so --agent had no effect: `clew configure cli-agent --agent billing " in again.err
