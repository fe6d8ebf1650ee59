"""Servers that speak Responses loosely: a tool runs once, with what was written, or not at all."""

from __future__ import annotations

import json
import uuid
from typing import Any

from clew import tool
from clew_activities.tools.registry import collect_tools
from tests.support.provider_server import encode_events, run_fake_server
from tests.support.stack import Stack, make_client, serve

DELTA = "response.function_call_arguments.delta"
Event = dict[str, Any]


def make_call(arguments: str, status: str = "completed") -> Event:
    return {
        "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look",
        "arguments": arguments, "status": status,
    }  # fmt: skip


def stream_call(arguments: str, *, is_cut: bool = False) -> list[Event]:
    """Stream a reasoning item and a call, both with the index 0; the final `output` is empty."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    begin = [
        {"type": "response.output_item.added", "output_index": 0, "item": thought},
        {"type": "response.output_item.done", "output_index": 0, "item": thought},
        {"type": "response.output_item.added", "output_index": 0, "item": make_call("", "in_progress")},
        {"type": DELTA, "item_id": "fc_1", "output_index": 0, "delta": arguments},
    ]
    if is_cut:
        reason = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return [*begin, {"type": "response.incomplete", "response": {"id": "resp_1", "output": [], **reason}}]
    done = {"type": "response.output_item.done", "output_index": 0, "item": make_call(arguments)}
    return [*begin, done, end()]


def stream_text() -> list[Event]:
    text = {"type": "output_text", "text": "fine", "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    return [{"type": "response.output_item.done", "output_index": 0, "item": item}, end()]


def end() -> Event:
    return {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}}


async def find_runs(stack: Stack, events: list[Event]) -> list[int]:
    """Have a session's model stream a call. Returns the limits with which the tool ran."""
    limits: list[int] = []

    @tool
    def look(limit: int = 10) -> str:
        """Look around."""
        limits.append(limit)
        return json.dumps(limit)

    async with run_fake_server() as server:
        server.answer(encode_events(events))
        for _ in range(4):
            server.answer(encode_events(stream_text()))
        environ = {"CLEW_PROVIDER_LOOSE_BASE_URL": server.url, "CLEW_PROVIDER_LOOSE_DIALECT": "responses"}
        async with serve(make_client(stack), environ, store=stack.store, tools=collect_tools([look])) as clew:
            session = await clew.open(f"test-{uuid.uuid4().hex}", model="loose:gpt-5", tools=["look"])
            request = await session.message("look")
            await request.result()
    return limits


async def test_items_with_one_index_are_told_apart(stack: Stack) -> None:
    """The tool runs once, with the arguments that were written."""
    assert await find_runs(stack, stream_call('{"limit": 3}')) == [3]


async def test_empty_arguments_are_none(stack: Stack) -> None:
    """A tool without required parameters runs with `{}`."""
    assert await find_runs(stack, stream_call("")) == [10]


async def test_a_call_that_is_cut_does_not_run(stack: Stack) -> None:
    """A call of which nothing has arrived yet is not one without arguments."""
    assert await find_runs(stack, stream_call('{"limit": 3', is_cut=True)) == []
    assert await find_runs(stack, stream_call("", is_cut=True)) == []
