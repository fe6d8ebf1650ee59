"""Replies that are interrupted: what was read of them is kept, shown to the model and counted. On a real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from clew import Agent, Session
from clew.local import Reply, ToolCall
from clew.session.events import TextAdded
from clew_workflows.contract.payloads import INTERRUPTED
from clew_workflows.thread.entries import Entry
from tests.support.processes import open_session_on, run_worker_process
from tests.support.rolling import make_id
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.viewers import Viewer, check_events, select, watch
from tests.support.waiting import wait_until

LONG = "".join(f"word{number} " for number in range(2000))


def write_at_length(body: dict[str, Any]) -> Reply:
    """Answer `go` with a long reply at 100 words a second, everything else at once."""
    if get_last_message(body)["content"] == "go":
        return Reply(LONG, tokens_per_second=100)
    return Reply("fine")


@asynccontextmanager
async def watch_reply(session: Session, characters: int) -> AsyncIterator[Viewer]:
    """Watch a session, from when so many characters of a reply have arrived."""
    async with watch(session) as viewer:
        await viewer.wait_for(
            lambda events: sum(len(event.text) for event in select(events, TextAdded)) >= characters
        )
        yield viewer
        check_events(viewer.events)


async def list_kinds(session: Session) -> list[str]:
    """List one word for each entry."""
    return [
        "interrupted" if entry.payload.get("interrupted") else entry.payload.get("role", entry.kind)
        for entry in await session.entries()
    ]


async def find_interrupted(session: Session, *, attempts: int = 1) -> Entry:
    """Find the only entry of an interrupted reply, and check what holds for each."""
    (entry,) = [entry for entry in await session.entries() if entry.payload.get("interrupted")]
    (run,) = [
        other
        for other in await session.entries()
        if other.kind == "run" and other.refs["run_id"] == entry.refs["run_id"]
    ]
    assert entry.payload.keys().isdisjoint({"tool_calls", "thinking", "provider_data"})
    assert entry.payload["recipe"]["stop_reason"] == "interrupted"
    usage = run.payload["usage"]
    # Each attempt was billed, and no server said how much.
    assert usage["estimated_calls"] == attempts
    assert entry.recipe
    assert usage == entry.recipe.call_usage.as_dict()
    newest = entry.recipe.usage
    assert newest.input_tokens > 0
    # The vocabulary has about four characters a token, and two for these words.
    assert len(entry.payload["content"]) / 8 < newest.output_tokens < len(entry.payload["content"])
    assert run.seq > entry.seq
    assert run.payload.get("answer_seq") is None
    return entry


async def test_a_cancelled_reply_keeps_what_was_read(stack: Stack) -> None:
    """The viewers' text is committed before the outcome; the next context shows it, and the usage counts it."""
    session = await stack.open(write_at_length)
    request = await session.message("go")
    async with watch_reply(session, 520) as viewer:
        receipt = await session.cancel()
        assert receipt.cancelled
        outcome = await request.result()
        await viewer.wait_for_seq(outcome.last_seq)
    assert (outcome.status, outcome.termination_reason) == ("cancelled", "cancelled")
    entry = await find_interrupted(session)
    text = entry.payload["content"]
    assert len(text) >= 520
    assert LONG.startswith(text)
    status = await session.status()
    assert status.usage == outcome.usage
    assert (status.usage.estimated_calls, status.usage.model_calls) == (1, 1)
    assert await list_kinds(session) == ["config", "user", "interrupted", "run"]
    assert await (await session.message("and now?")).answer() == "fine"
    shown = stack.list_requests(status.model)[-1]["messages"]
    assert [(message["role"], message["content"]) for message in shown] == [
        ("user", "go"), ("assistant", text + INTERRUPTED), ("user", "and now?"),
    ]  # fmt: skip
    after = (await session.status()).usage
    assert (after.estimated_calls, after.model_calls) == (1, 2)
    assert after.input_tokens > outcome.usage.input_tokens


async def test_an_interrupting_message_follows_what_was_read(stack: Stack) -> None:
    """The text, the run's end, then the message that has interrupted it, whose context shows the text."""
    session = await stack.open(write_at_length)
    request = await session.message("go")
    async with watch_reply(session, 50):
        other = await session.message("rather this", on_busy="interrupt")
        assert await other.answer() == "fine"
    assert (await request.result()).termination_reason == "interrupted"
    assert await list_kinds(session) == ["config", "user", "interrupted", "run", "user", "assistant", "run"]
    text = (await find_interrupted(session)).payload["content"]
    shown = stack.list_requests((await session.status()).model)[-1]["messages"]
    assert [message["content"] for message in shown] == ["go", text + INTERRUPTED, "rather this"]


async def test_what_arrives_while_a_reply_is_stopped_is_served_after_it(stack: Stack) -> None:
    """A change and a message that follow a cancellation at once meet a session whose run has ended."""
    session = await stack.open(write_at_length)
    request = await session.message("go", request_id="first")
    async with watch_reply(session, 50):
        receipt = await session.cancel("first")
        assert receipt.cancelled
        changed = await session.configure(system_prompt="Be brief.")
        later = await session.message("and now?", on_busy="reject")
        assert changed.status == "applied"
        assert await later.answer() == "fine"
        assert (await request.result()).status == "cancelled"
    await find_interrupted(session)


async def test_a_closed_session_keeps_what_was_read(stack: Stack) -> None:
    """Its archive has the text, and it is there when the session is opened again."""
    session = await stack.open(write_at_length)
    await session.message("go")
    async with watch_reply(session, 50):
        await session.close()
        assert await list_kinds(session) == ["config", "user", "interrupted", "run", "session"]
        text = (await find_interrupted(session)).payload["content"]
    again = await stack.clew.open(session.id)
    assert await (await again.message("and now?")).answer() == "fine"
    shown = stack.list_requests((await again.status()).model)[-1]["messages"]
    assert [message["content"] for message in shown] == ["go", text + INTERRUPTED, "and now?"]


async def test_a_fork_has_what_was_read(stack: Stack) -> None:
    """Also one that begins right after the text, before the outcome."""
    session = await stack.open(write_at_length)
    request = await session.message("go")
    async with watch_reply(session, 50):
        await session.cancel()
        await request.result()
    entry = await find_interrupted(session)
    fork = await session.fork(at_seq=entry.seq)
    assert await (await fork.message("and now?")).answer() == "fine"
    shown = stack.list_requests((await session.status()).model)[-1]["messages"]
    assert [message["content"] for message in shown] == ["go", entry.payload["content"] + INTERRUPTED, "and now?"]


async def test_a_cancelled_subagent_reports_what_it_has_used(stack: Stack) -> None:
    """Its parent counts the estimate."""
    clew = make_client(stack)
    helper = Agent("helper", model=stack.add_model(write_at_length))
    boss = Agent(
        "boss",
        model=stack.add_model(lambda _body: Reply(tool_calls=(ToolCall("helper", {"task": "go"}),))),
        tools=[helper.as_tool()],
    )
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        request = await session.message("share it")
        await wait_until(lambda: has_subagents(session))
        async with watch_reply(clew.session(f"{session.id}.tool00001"), 50):
            await session.cancel()
            assert (await request.result()).status == "cancelled"
            await wait_until(lambda: has_no_subagents(session))
        used = (await session.status()).subagent_usage
        assert used is not None
        assert (used.estimated_calls, used.model_calls) == (1, 1)
        assert used.output_tokens > 0


async def has_subagents(session: Session) -> bool:
    """Whether a subagent works for the session."""
    return [child.status for child in (await session.status()).subagents] == ["working"]


async def has_no_subagents(session: Session) -> bool:
    """Whether all subagents have reported."""
    return not (await session.status()).subagents


async def test_a_cancelled_workflow_keeps_what_was_read(stack: Stack) -> None:
    """Cancelling the workflow closes the session."""
    session = await stack.open(write_at_length)
    await session.message("go")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    async with watch_reply(session, 50):
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert await list_kinds(session) == ["config", "user", "interrupted", "run", "session"]


async def test_a_reply_without_text_leaves_no_entry(stack: Stack) -> None:
    """Neither one that has not begun, nor one that has no more than a tool call."""
    called = asyncio.Event()

    def hang(_body: dict[str, Any]) -> Reply:
        called.set()
        return Reply(hangs=True)

    session = await stack.open(hang)
    request = await session.message("go")
    await called.wait()
    await session.cancel()
    outcome = await request.result()
    assert (outcome.status, outcome.usage.estimated_calls) == ("cancelled", None)
    assert await list_kinds(session) == ["config", "user", "run"]


async def test_a_reply_that_times_out_keeps_what_was_read(stack: Stack) -> None:
    """The request's time is over in the middle of the stream."""
    session = await stack.open(write_at_length, request_timeout_seconds=5)
    request = await session.message("go")
    async with watch_reply(session, 50):
        outcome = await request.result()
    assert outcome.error is not None
    assert outcome.error.type == "timeout"
    assert await list_kinds(session) == ["config", "user", "interrupted", "error", "run"]
    assert LONG.startswith((await find_interrupted(session)).payload["content"])


@pytest.mark.slow
async def test_a_reply_that_is_cut_off_keeps_the_last_attempt(stack: Stack) -> None:
    """The provider cuts off every attempt, in the middle of a tool call: the text is kept, and no call."""
    attempts: list[str] = []

    def cut(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["content"] != "go":
            return Reply("fine")
        attempts.append(f"attempt {len(attempts) + 1} at some length")
        return Reply(attempts[-1], (ToolCall("add", '{"a": 1, "b'),), disconnect_after=20)

    session = await stack.open(cut, tools=["add"])
    outcome = await (await session.message("go")).result()
    assert outcome.error is not None
    assert outcome.error.type == "truncated_stream"
    assert await list_kinds(session) == ["config", "user", "interrupted", "error", "run"]
    assert (await find_interrupted(session, attempts=3)).payload["content"] == attempts[-1]
    assert len(attempts) == 3
    assert "answer" not in (await session.entries(kind="error"))[0].payload.get("details", {})
    assert await (await session.message("and now?")).answer() == "fine"


@pytest.mark.slow
async def test_a_reply_of_a_lost_worker_is_taken_from_its_last_heartbeat(stack: Stack) -> None:
    """SIGKILL in the middle of a reply, and no attempt follows because the request is cancelled."""
    queue = f"queue-{uuid.uuid4().hex}"
    # The worker of the session lives on, so that the cancellation arrives before the server misses a heartbeat. No
    # other worker makes model calls, so that no second attempt replaces the heartbeat of the first.
    async with (
        run_worker_process(stack, queue, CLEW_SERVE="sessions"),
        run_worker_process(stack, queue, CLEW_SERVE="models") as lost,
    ):
        session = await open_session_on(stack, queue, write_at_length)
        request = await session.message("go")
        async with watch_reply(session, 520):
            await lost.kill()
            await session.cancel()
            outcome = await request.result()
            assert outcome.status == "cancelled"
            text = (await find_interrupted(session)).payload["content"]
            assert len(text) >= 520
            assert LONG.startswith(text)
            assert await list_kinds(session) == ["config", "user", "interrupted", "run"]
