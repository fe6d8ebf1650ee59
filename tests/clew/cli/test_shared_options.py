"""Completion in the shell: names of sessions, agents, models and waiting calls, from the server that is named."""

from __future__ import annotations

import uuid
from typing import Any

from clew import Agent
from clew.cli.shared_options import list_names
from clew.local import Reply, ToolCall
from clew.local.child import free_ports
from tests.support.command_line import run_clew
from tests.support.scripts import call_add_twice
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import wait_until


async def complete(*words: str, address: str | None = None) -> list[str]:
    """Complete the last word of a line, as bash does."""
    line = ["clew", *words]
    ended = await run_clew(
        _CLEW_COMPLETE="complete_bash", COMP_WORDS=" ".join(line), COMP_CWORD=str(len(line) - 1), address=address
    )
    assert (ended.code, ended.err) == (0, "")
    return ended.out.split()


async def test_sessions_agents_and_models_are_completed(stack: Stack) -> None:
    """By the beginning that is typed; from the server of the environment or of --address; without a worker, too."""
    clew, address = make_client(stack), stack.server.address
    prefix, model = f"names-{uuid.uuid4().hex}", stack.add_model("fine")
    agent = Agent(f"agent-{uuid.uuid4().hex}", model=model)
    async with run_deployment(stack, clew, agent):
        await clew.open(f"{prefix}-1", model=model)
        await (await clew.open(f"{prefix}-2", agent=agent.name)).ask("hi")  # the list has agents from then on

    async def are_listed() -> object:
        names = await list_names(clew, prefix)
        return len(names.sessions) == 2 and names.agents

    await wait_until(are_listed)
    assert sorted(await complete("status", prefix, address=address)) == [f"{prefix}-1", f"{prefix}-2"]
    assert await complete("report", "--address", address, f"{prefix}-1") == [f"{prefix}-1"]
    assert await complete("chat", "new", "--agent", agent.name[:-1], address=address) == [agent.name]
    assert model in await complete("ask", "new", "hi", "--model", "scripted", address=address)
    assert await complete("configure", prefix, "--fallback", model, address=address) == [model]


async def test_waiting_calls_are_completed(stack: Stack) -> None:
    """`approve` and `deny` get those that wait for approval, `submit` the external ones."""
    address = stack.server.address

    def order(body: dict[str, Any]) -> Reply:
        waits = get_last_message(body)["role"] == "user"
        return Reply("", (ToolCall("order", {"item": "tea"}),) if waits else ())

    asking = await stack.open(call_add_twice, tools=["add"], require_approval=["add"])
    ordering = await stack.open(order, tools=["order"])
    for session, text in ((asking, "Add"), (ordering, "Tea")):
        await session.message(text)
        await wait_until(session.list_waiting_calls)
    assert await complete("approve", asking.id, "t", address=address) == ["tool00001", "tool00002"]
    assert await complete("deny", asking.id, "tool00002", address=address) == ["tool00002"]
    assert await complete("submit", asking.id, "t", address=address) == []
    assert await complete("submit", ordering.id, "t", address=address) == ["tool00001"]


async def test_tools_of_providers_are_completed() -> None:
    """They need no server."""
    assert await complete("ask", "new", "hi", "--provider-tool", "web") == ["web_search", "web_fetch"]
    assert await complete("configure", "s", "--provider-tool", "c") == ["code_execution"]


async def test_without_a_server_nothing_is_completed() -> None:
    """The line stays as it is, and nothing is printed on it."""
    (port,) = free_ports(1)
    assert await complete("status", "a", address=f"127.0.0.1:{port}") == []
    assert await complete("status", "a", address="no address") == []
