"""The stack of a user's test: scripted models, time that is skipped, a worker that dies."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest

from clew import Audio, File, Image, RequestFailed, ToolContext, testing, tool
from clew.agents import Agent
from clew.testing import Reply, ScriptedRequest, Stack, ToolCall
from clew.tools import external_tool
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.scripts import FOUNDED, PAGE
from tests.support.waiting import wait_until

started = threading.Event()
attempts: list[int] = []


@tool(requires_approval=True)
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def survive(context: ToolContext) -> int:
    """Hang in the first attempt."""
    attempts.append(context.attempt)
    if context.attempt == 1:
        started.set()
        await asyncio.Event().wait()
    return context.attempt


@tool(retries=3)
def stumble(context: ToolContext) -> str:
    """Fail three times."""
    if context.attempt < 4:
        raise OSError("not yet")
    return "at last"


@pytest.fixture(scope="module")
async def running() -> AsyncIterator[Stack]:
    paid = external_tool("paid", "Wait for the payment.", {"type": "object", "properties": {}})
    async with testing.stack(tools=[refund, survive, stumble, paid]) as running:
        yield running


@pytest.mark.slow
async def test_a_list_is_a_script(running: Stack) -> None:
    """Each call gets the next reply; one too many fails its request."""
    session = await running.open(["one", Reply("two")])
    assert [await session.ask("a"), await session.ask("b")] == ["one", "two"]
    with pytest.raises(RequestFailed, match="it has 2 replies, and this is call 3"):
        await session.ask("c")


async def test_a_function_reads_what_the_model_was_sent(running: Stack) -> None:
    """It sees messages, tools and the number of the call."""

    def script(request: ScriptedRequest) -> str:
        return f"{request.number} {request.role} {request.text} {request.system_prompt} {request.tools}"

    session = await running.open(script, system_prompt="Be kind.", tools=["stumble"])
    assert await session.ask("hello") == "1 user hello Be kind. ['stumble', 'read_result']"


async def test_errors_of_a_provider_are_retried_at_once(running: Stack) -> None:
    """Six rate limits, with pauses of more than a minute elsewhere, take no time."""
    model = running.model([*[Reply.rate_limited()] * 6, "at last"])
    session = await running.open(model=model)
    assert await session.ask("hello", timeout_seconds=30) == "at last"
    assert len(running.requests(model)) == 7


async def test_a_tool_is_retried_at_once(running: Stack) -> None:
    """The pauses between the attempts of a tool take no time, either."""
    session = await running.open([Reply(tool_calls=[ToolCall("stumble", {})]), "done"], tools=["stumble"])
    assert await session.ask("go", timeout_seconds=20) == "done"
    (await running.read(session)).expect_call("stumble")


async def test_an_approval_waits_a_month(running: Stack) -> None:
    """Time is skipped while a call waits; nothing times out, and the tool runs."""
    session = await running.open([Reply(tool_calls=[ToolCall("refund", {"order": "7"})]), "done"], tools=["refund"])
    request = await session.message("refund it")
    call = await running.wait_for_approval(session)
    await running.skip_time(session, timedelta(days=30))
    await session.approve(call)
    assert await request.answer() == "done"
    thread = await running.read(session)
    refunded = thread.expect_call("refund", order="7")
    assert (refunded.result, refunded.decision) == ("refunded 7", "approve")


async def test_a_model_that_hangs_is_given_up_after_its_time(running: Stack) -> None:
    """A request's timeout ends it."""
    session = await running.open(Reply(hangs=True), request_timeout_seconds=1)
    with pytest.raises(RequestFailed, match="no answer within 1 seconds"):
        await session.ask("hello")


async def test_a_worker_dies_within_a_tool_call(running: Stack) -> None:
    """The next worker runs the call again, without a wait for heartbeats."""
    session = await running.open([Reply(tool_calls=[ToolCall("survive", {})]), "done"], tools=["survive"])
    request = await session.message("go")
    assert await asyncio.to_thread(started.wait, 10)
    await running.kill_worker()
    await running.restart_worker()
    assert await request.answer() == "done"
    assert attempts == [1, 2]
    assert (await running.read(session)).calls[0].result == "2"


@pytest.mark.slow
async def test_the_next_attempt_has_the_time_that_calls_have(running: Stack) -> None:
    """The short time in which a dead worker is noticed does not end a long reply of the worker after it."""
    seen: list[str] = []

    def script(request: ScriptedRequest) -> Reply:
        seen.append(request.text)
        return Reply("word " * 120, tokens_per_second=20)

    session = await running.open(script)
    request = await session.message("go")
    await wait_until(lambda: bool(seen))
    await running.kill_worker()
    await running.restart_worker()
    assert (await request.answer()).startswith("word word")
    assert len(seen) == 2


async def test_a_script_that_raises_fails_its_request(running: Stack) -> None:
    """An assertion in a script reaches the test, and is not retried."""

    def script(request: ScriptedRequest) -> str:
        assert request.text == "goodbye", "say goodbye"
        return "fine"

    with pytest.raises(RequestFailed, match="AssertionError: say goodbye"):
        await (await running.open(script)).ask("hello")


async def test_a_failed_expectation_shows_the_thread(running: Stack) -> None:
    """The message of the assertion has the session's messages."""
    session = await running.open("fine")
    await session.ask("hello")
    thread = await running.read(session)
    thread.expect_answer("fine")
    assert [context[-1]["content"] for context in thread.contexts_shown] == ["hello"]
    with pytest.raises(AssertionError, match=r"(?s)called \[\], expected \['refund'\].*user: hello.*assistant: fine"):
        thread.expect_tools("refund")


def test_a_test_may_block_and_use_loops_of_its_own() -> None:
    """A stack that plain code starts serves two loops, one after the other."""
    with testing.stack() as blocking:
        for text in ("one", "two"):

            async def ask(text: str = text) -> str:
                return await (await blocking.open(text)).ask("hello")

            assert asyncio.run(ask()) == text


async def test_a_session_of_an_agent_gets_the_next_deployments_prompt() -> None:
    """A script replaces the agent's model; `restart_worker` deploys another version of the agent."""
    agent = Agent("support", model="openai:gpt-4o", system_prompt="one", tools=[stumble])
    async with testing.stack(agents=[agent]) as running:
        session = await running.open(lambda request: f"{request.system_prompt}", agent="support")
        assert await session.ask("hello") == "one"
        await running.restart_worker(agents=[replace(agent, system_prompt="two")])
        assert await session.ask("hello") == "two"


async def test_a_script_has_the_prices_of_the_agents_model() -> None:
    """An agent with a limit of its cost can be tested: a call of its scripted model has a cost."""
    agent = Agent("frugal", model="openai:gpt-4o", limits={"max_cost_usd": 1.0})
    async with testing.stack(agents=[agent]) as running:
        session = await running.open("fine", agent="frugal")
        outcome = await (await session.message("hello")).result()
        assert outcome.status == "completed"
        assert outcome.usage.cost_usd


HELPER = Agent("helper", model="openai:gpt-4o-mini")
BOSS = Agent("boss", model="openai:gpt-4o", tools=[HELPER.as_tool()], fallbacks=["anthropic:claude-sonnet-4-5"])


async def test_every_agent_of_a_tree_has_a_script() -> None:
    """A subagent, too, and a fallback: no real model is called."""
    task = Reply(tool_calls=[ToolCall("helper", {"task": "count"})])
    scripts: dict[str, testing.Script] = {
        "boss": lambda request: task if request.number == 1 else Reply.error(HTTPStatus.SERVICE_UNAVAILABLE, "down"),
        "helper": lambda request: f"{request.text}: 7",
        "anthropic:claude-sonnet-4-5": lambda request: f"the fallback read {request.text}",
    }
    async with testing.stack(agents=[BOSS], scripts=scripts) as running:
        session = await running.open(agent="boss")
        assert await session.ask("go") == "the fallback read count: 7"
        assert [request.text for request in running.requests("helper")] == ["count"]
        running.script("boss", ["again"])
        assert await session.ask("go on") == "again"


@pytest.mark.parametrize("scripts", [{}, {"helper": []}], ids=["no script", "no reply left"])
async def test_a_subagent_that_nobody_scripted_fails_the_test(scripts: dict[str, testing.Script]) -> None:
    """The model above it reads the failure as a result, and its request completes."""
    running = await testing.stack(agents=[BOSS], scripts=scripts).__aenter__()
    task = Reply(tool_calls=[ToolCall("helper", {"task": "count"})])
    assert await (await running.open([task, "done"], agent="boss")).ask("go") == "done"
    with pytest.raises(testing.ScriptFailed, match="helper"):
        await running.__aexit__(None, None, None)
    running.check()


async def test_a_script_of_an_unknown_agent_is_refused() -> None:
    with pytest.raises(KeyError, match="no agent 'bos'"):
        testing.stack(agents=[BOSS], scripts={"bos": "hi"})


async def test_an_external_call_is_waited_for(running: Stack) -> None:
    """A test answers it by its id."""
    session = await running.open([Reply(tool_calls=[ToolCall("paid", {})]), "thanks"], tools=["paid"])
    request = await session.message("buy")
    await session.submit_tool_result(await running.wait_for_external(session), "7 EUR")
    assert await request.answer() == "thanks"


@pytest.mark.slow
async def test_a_wait_after_a_failed_run_ends_with_its_thread(running: Stack) -> None:
    """No call can wait any more: the test need not wait for its time."""
    session = await running.open([], tools=["refund"])
    await session.message("refund it")
    for wait in (running.wait_for_approval, running.wait_for_external):
        with pytest.raises(testing.Stuck, match=r"(?s)no request runs.*run: failed"):
            await wait(session, 60)


async def test_a_wait_for_an_answer_has_an_end() -> None:
    """The error says what the session waits for, or that no worker runs."""
    async with testing.stack(tools=[refund], patience_seconds=4) as running:
        session = await running.open([Reply(tool_calls=[ToolCall("refund", {"order": "7"})]), "x"], tools=["refund"])
        request = await session.message("refund it")
        call = await running.wait_for_approval(session)
        with pytest.raises(testing.Stuck, match=r"(?s)within 4 s; its status is awaiting_approval.*refund"):
            await request.answer()
        await session.approve(call)
        assert await request.answer() == "x"


@tool(task_queue=f"testing-{uuid.uuid4().hex}")
def measure() -> str:
    """Measure."""
    return "measured"


async def test_a_tool_with_a_task_queue_has_its_worker() -> None:
    """The stack serves the task queues that its tools name."""
    async with testing.stack(tools=[measure]) as running:
        session = await running.open([Reply(tool_calls=[ToolCall("measure", {})]), "done"], tools=["measure"])
        assert await session.ask("go", timeout_seconds=10) == "done"
        assert (await running.read(session)).calls[0].result == "measured"


async def test_a_script_may_cite_and_search(running: Stack) -> None:
    """The reply has what its provider ran and the sources; so have the view of the thread and its rendering."""
    session = await running.open([FOUNDED], provider_tools=["web_search", "code_execution"])
    request = await session.message("Where does tea grow?")
    reply = await request.reply()
    assert (reply.content, reply.citations) == (FOUNDED.text, list(FOUNDED.citations))
    assert reply.provider_calls == list(FOUNDED.provider_calls)
    view = await running.read(session)
    assert (view.provider_calls, view.citations) == (reply.provider_calls, reply.citations)
    ran = "web_search: where tea grows code_execution: print(1 + 1)"
    assert f"assistant: {FOUNDED.text} {ran} [1] {PAGE}" in str(view)
    assert reply.recipe is not None
    assert reply.recipe.provider_tools == ("web_search", "code_execution")
    assert reply.recipe.request is not None
    assert reply.recipe.request.encoder.startswith("openai-chat/")


@pytest.mark.slow
async def test_a_scripted_model_takes_what_the_test_says(running: Stack) -> None:
    """It receives the bytes of what it takes, and reads markers of the others; by default it takes nothing."""
    content: list[Any] = ["look", Image.from_bytes(make_png(), name="a.png"), File.from_bytes(make_pdf(1))]
    cases: list[tuple[Any, list[str]]] = [
        (["image"], ["image"]),
        (["image", "pdf"], ["image", "file"]),
        ((), []),
        (None, []),
    ]
    for takes, kinds in cases:
        session = await running.open("seen", takes=takes)
        assert await session.ask(content) == "seen"
        (request,) = running.requests((await session.status()).model)
        assert [media.kind for media in request.media] == kinds
        assert [media.data for media in request.media] == [make_png(), make_pdf(1)][: len(kinds)]
        assert ("[file: " in request.text) == ("file" not in kinds)


async def test_a_scripted_model_hears_and_speaks(running: Stack) -> None:
    """A model that takes recordings receives them, and its own recordings and images are parts of its reply."""
    session = await running.open(Reply("here", images=[make_png()], audio=make_wav(1)), takes=["audio"])
    await session.ask([Audio.from_bytes(make_wav(2))])
    (request,) = running.requests((await session.status()).model)
    assert [(media.kind, media.media_type, media.data) for media in request.media] == [
        ("audio", "audio/wav", make_wav(2))
    ]
    assert sorted(part["type"] for part in (await running.read(session)).drawn) == ["audio", "image"]
