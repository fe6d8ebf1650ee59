"""Scripts of models, and waits for what sessions make of them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from clew import Agent, Entry, Session
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from tests.support import toolbox
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until


def reply_as_told(body: dict[str, Any]) -> Reply:
    """Call `add` twice if the user says so, reply with JSON if a form is wanted, else with the number of messages."""
    newest = get_last_message(body)
    if newest["role"] == "user" and "add" in newest["content"]:
        return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
    return Reply(
        "{}" if "form" in newest["content"] else f"I read {len(body['messages'])} messages · " + "words " * 20
    )


PAGE = "https://tea.example/assam"
FOUNDED = Reply(
    "Tea is grown in Assam.",
    provider_calls=[
        {"tool": "web_search", "input": "where tea grows", "sources": [{"url": PAGE, "title": "Assam"}]},
        {"tool": "code_execution", "input": "print(1 + 1)", "output": "2"},
    ],
    citations=[
        {"url": PAGE, "title": "Assam", "quote": "Assam grows tea.", "start": 0, "end": 22},
        {"url": PAGE, "title": "Assam", "start": 16, "end": 21},
        {"url": "javascript:alert(1)", "title": "Click me"},
    ],
)
"""A reply of a model whose provider has searched and run code, with citations; one names no page of the web."""


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


async def list_results(session: Session) -> list[Entry]:
    """List the entries of a session with results of tools."""
    return [entry for entry in await session.entries(kind="ai_message") if entry.payload["role"] == "tool"]


def make_boss(stack: Stack) -> Agent:
    """Make an agent that calls a subagent once, whose own tool `guarded` waits for an approval."""

    def call_once(name: str, arguments: dict[str, Any]) -> Script:
        def script(body: dict[str, Any]) -> Reply:
            asked = get_last_message(body)["role"] == "user"
            return Reply(tool_calls=(ToolCall(name, arguments),)) if asked else Reply("all done")

        return script

    helper = Agent("helper", model=stack.add_model(call_once("guarded", {})), tools=[toolbox.guarded])
    return Agent("boss", model=stack.add_model(call_once("helper", {"task": "sum"})), tools=[helper.as_tool()])


class PausedModel:
    """A model that sets `called`, waits for `free`, and repeats the last message."""

    def __init__(self) -> None:
        self.called, self.free = asyncio.Event(), asyncio.Event()

    async def __call__(self, body: dict[str, Any]) -> Reply:
        self.called.set()
        await self.free.wait()
        return Reply(f"<{get_last_message(body)['content']}>")


def call_add_twice(body: dict[str, Any]) -> Reply:
    """A model that calls `add` twice in one round, and then repeats the results."""
    if get_last_message(body)["role"] == "user":
        return Reply("", (ToolCall("add", {"a": 40, "b": 2}), ToolCall("add", {"a": 1, "b": 1})))
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return Reply(" and ".join(results))


async def wait_for_approvals(session: Session) -> None:
    """Wait until the session waits for approvals."""

    async def waits() -> bool:
        return bool((await session.status()).pending_approvals)

    await wait_until(waits)


def answer_or_hang(body: dict[str, Any]) -> Reply:
    """Reply with the number of messages, or with a call of a tool that never returns if the user says `hang`."""
    if get_last_message(body)["role"] == "user" and get_last_message(body)["content"] == "hang":
        return Reply(tool_calls=(ToolCall("wait_for", {"gate": f"never-{uuid.uuid4().hex}"}),))
    return Reply(f"I read {len(body['messages'])}")


async def leave_open_work(session: Session) -> None:
    """Leave a session with a running tool call, a queued message and a steering input that is not used yet."""
    await session.message("hang", request_id="hangs")

    async def runs_tools() -> bool:
        return (await session.status()).status == "awaiting_tools"

    await wait_until(runs_tools)
    await session.message("wait", request_id="waits", on_busy="queue")
    await session.steer("hurry", input_id="hurries")


async def query_live_entries(session: Session) -> list[dict[str, Any]]:
    """Query the live part of a session's thread."""
    first = (await session.status()).first_live_seq
    return [entry.as_dict() for entry in await session.entries(from_seq=first)]
