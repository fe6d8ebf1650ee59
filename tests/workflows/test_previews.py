"""Previews: the context of a message that has not been sent, whether it fits, and its cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import ContextPolicy, Session
from clew.contract import ContextQuery, PendingMessage
from clew.errors import EmptyContent, InvalidInput
from clew.local import Reply, ToolCall
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message

SHORT = ContextPolicy(max_input_tokens=700, reserve_output_tokens=100, keep_last_turns=2)


def query(*contents: str, **asked: Any) -> ContextQuery:
    pending = tuple(PendingMessage(role="user", content=content) for content in contents)
    return ContextQuery(pending=pending, **asked)


async def assert_asked_as_previewed(stack: Stack, session: Session, content: str, **own: Any) -> None:
    """Assert that the model receives the previewed context when the same message is sent next."""
    shown = await session.context(pending=[content], **own)
    await session.ask(content, **own)
    replies = [entry for entry in await session.entries(kind="ai_message") if "recipe" in entry.payload]
    first = replies[-1]
    while first.refs["iteration"] > 1:
        replies.pop()
        first = replies[-1]
    assert shown.meta.digest == first.payload["recipe"]["digest"]
    assert shown.meta.estimated_tokens == first.payload["recipe"]["input_tokens"]
    assert shown.meta.policy_hash == first.payload["recipe"]["policy_hash"]
    assert shown.meta.pending_count == 1


def reply_with_sum(body: dict[str, Any]) -> Reply:
    newest = get_last_message(body)
    if newest["role"] == "user" and "add" in newest["content"]:
        return Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 1}),))
    return Reply("so it is " + "indeed " * 20)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["sliding", pytest.param("epoch", marks=pytest.mark.slow)])
async def test_the_preview_is_what_the_model_sees(stack: Stack, window: Any) -> None:
    """Through truncation, tools, lanes and policies of one's own, in either kind of window."""
    policy = SHORT.overlay(ContextPolicy(window=window))
    session = await stack.open(reply_with_sum, tools=["add"], system_prompt="Be exact.", context_policy=policy)
    truncated = 0
    for turn in range(7):
        await assert_asked_as_previewed(stack, session, f"{turn} please add " + "some words " * 20)
        truncated += (await session.context(pending=["x"])).meta.truncated
    assert truncated
    await assert_asked_as_previewed(stack, session, "shorter", context_policy=ContextPolicy(max_messages=4))
    await session.switch_context("side", op_id="o-1")
    await assert_asked_as_previewed(stack, session, "  with space around  ")


async def test_a_preview_is_made_while_a_run_is_active(stack: Stack) -> None:
    """It shows the context of a next request at this moment and does not affect the run."""
    called, answer = asyncio.Event(), asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await answer.wait()
        return Reply("fine")

    session = await stack.open(script)
    request = await session.message("one")
    await called.wait()
    shown = await session.context(pending=["two", {"role": "user", "content": "three"}])
    assert [message["content"] for message in shown.messages] == ["one", "two", "three"]
    answer.set()
    await request.result()
    assert len(await session.entries()) == 4


@pytest.mark.slow
async def test_a_session_that_sleeps_or_has_rolled_over_is_previewed(stack: Stack) -> None:
    """It shows the context after the session resumes, also if the lane is only in the archive."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"), context_policy=SHORT)
        for turn in range(20):
            await session.ask(f"turn {turn} " + "words " * 100)
        wide = ContextPolicy(max_input_tokens=50_000)
        shown = await session.context(pending=["all of it"], context_policy=wide)
        await session.hibernate()
        asleep = await clew.temporal.execute_workflow(
            "ReadContext",
            {
                "session_id": session.id,
                "pending": [{"role": "user", "content": "all of it"}],
                "context_policy": wide.model_dump(mode="json", exclude_unset=True),
            },
            id=make_id(),
            task_queue=clew.task_queue,
            result_type=dict,
        )
        assert asleep["messages"] == shown.messages
        assert len(shown.messages) == 41
        again = await clew.open(session.id)
        await assert_asked_as_previewed(stack, again, "all of it", context_policy=wide)


async def test_what_cannot_be_asked_cannot_be_previewed(stack: Stack) -> None:
    """An empty message, a message of another role and a call id are refused."""
    session = await stack.open()
    with pytest.raises(EmptyContent):
        await session.context(pending=["  "])
    with pytest.raises(InvalidInput):
        await session.context(pending=[])
    with pytest.raises(InvalidInput):
        await session.context(pending=[{"role": "assistant", "content": "no"}])
    with pytest.raises(InvalidInput, match="leave call_id out"):
        await session.context(pending=["one"], call_id="call-1")
