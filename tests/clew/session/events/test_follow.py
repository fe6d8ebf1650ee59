"""Following sessions on a real server: order, completeness, and what it costs."""

from __future__ import annotations

from typing import Any

from clew.local import Reply, ToolCall
from clew.session.events import EntryCommitted, SessionEvent, TextAdded
from clew.session.request import Request
from tests.support.stack import Stack, get_last_message

WORDS = " ".join(f"word{number}" for number in range(12))


async def collect(request: Request) -> list[SessionEvent]:
    """Collect the events of a request until its outcome."""
    return [event async for event in request.events()]


def join_texts(events: list[SessionEvent]) -> dict[str, str]:
    """Put the texts of each model call together."""
    texts: dict[str, str] = {}
    for event in events:
        if isinstance(event, TextAdded):
            texts[event.call_id] = texts.get(event.call_id, "")[: event.offset] + event.text
    return texts


async def test_a_request_is_followed_to_its_outcome(stack: Stack) -> None:
    """Every entry once and in order; the texts between them grow and are the reply."""
    session = await stack.open(lambda _body: Reply(WORDS, tokens_per_second=10))
    request = await session.message("go")
    events = await collect(request)
    seqs = [event.seq for event in events if isinstance(event, EntryCommitted)]
    assert seqs == [entry.seq for entry in await session.entries() if entry.kind != "config"]
    assert len([event for event in events if isinstance(event, TextAdded)]) > 3
    assert list(join_texts(events).values()) == [WORDS]


async def test_a_tool_call_starts_and_finishes(stack: Stack) -> None:
    """Between the entry that calls the tool and the entry with its result."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("add", {"a": 2, "b": 3}),))
        return Reply("five")

    session = await stack.open(script, tools=["add"])
    events = await collect(await session.message("go"))
    shown = [event.seq if isinstance(event, EntryCommitted) else event.type for event in events]
    assert [item for item in shown if item != "status"] == [1, 2, "tool_started", "tool_finished", 3, "text", 4, 5]
