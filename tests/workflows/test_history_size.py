"""The history of a session grows linearly and holds each text once."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from clew.local import Reply, ToolCall
from clew_workflows.protocol import RolloverThresholds
from tests.support.encrypted import needs_plain
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message


async def measure_history(stack: Stack, session_id: str) -> tuple[int, int]:
    """Events and bytes, as the server counts them."""
    handle = stack.clew.temporal.get_workflow_handle(session_id)
    info = (await handle.describe()).raw_description.workflow_execution_info
    return info.history_length, info.history_size_bytes


@pytest.mark.slow
async def test_a_hundred_turns_stay_small(stack: Stack) -> None:
    """100 turns of 1.8 KB have at most 12 events each, the start a few more, and less than 700 KB together.

    A turn has 11; an update of the lists, once a minute at most, has one more.
    """
    async with run_rolling_worker(stack, RolloverThresholds(events=15_000)) as clew:
        answer = "An answer that a model might give, with this and that. " * 17
        session = await clew.open(make_id(), model=stack.add_model(answer))
        for number in range(100):
            await session.ask(f"{number} " + "A question that a user might ask, in so many words. " * 17)
        events, size = await measure_history(stack, session.id)
        assert events <= 12 * 100 + 20
        assert size < 700_000
        await session.close()


@pytest.mark.slow
async def test_a_round_of_one_tool_adds_at_most_fourteen_events(stack: Stack) -> None:
    """A turn has at most twelve events, one of them for lists, with a round of one tool at most fourteen more.

    The shortest of three turns counts: on a busy machine a turn may need a workflow task more.
    """

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["content"] == "add":
            return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
        return Reply("fine")

    session = await stack.open(script, tools=["add"])

    async def count_events(message: str) -> int:
        before, _ = await measure_history(stack, session.id)
        await session.ask(message)
        return (await measure_history(stack, session.id))[0] - before

    plain = min([await count_events("hello") for _ in range(3)])
    with_tool = min([await count_events("add") for _ in range(3)])
    assert plain <= 12
    assert with_tool <= 12 + 14


@needs_plain
async def test_every_text_is_in_the_history_once(stack: Stack) -> None:
    """A user's and a model's text, a tool's result and the prompt are found once, a tool's arguments twice.

    The title repeats the first words of a session, unless it is set, and labels repeat the beginnings of messages and
    arguments.
    """
    names = ("prompt", "question", "answer", "arguments", "said")
    texts = {name: f"{name} {'begins ' * 20} {uuid.uuid4().hex}" for name in names}

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(texts["said"], tool_calls=(ToolCall("add", {"a": texts["arguments"], "b": 1}),))
        return Reply(texts["answer"])

    session = await stack.open(script, tools=["add"], system_prompt=texts["prompt"], metadata={"title": ""})
    request = await session.message(texts["question"])
    await request.answer()
    await session.request(request.request_id).result()
    history = await stack.clew.temporal.get_workflow_handle(session.id).fetch_history()
    whole = "\n".join(list_payloads(json.loads(history.to_json())))
    counts = {name: whole.count(text) for name, text in texts.items()}
    assert counts == {"prompt": 1, "question": 1, "answer": 1, "said": 1, "arguments": 2}


def list_payloads(value: Any) -> list[str]:
    """List the decoded payloads of a history."""
    if isinstance(value, list):
        return [payload for item in value for payload in list_payloads(item)]
    if not isinstance(value, dict):
        return []
    own = [base64.b64decode(value["data"]).decode()] if isinstance(value.get("data"), str) else []
    return own + [payload for item in value.values() for payload in list_payloads(item)]
