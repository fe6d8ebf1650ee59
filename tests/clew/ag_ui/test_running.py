"""Sessions behind AG-UI, on a real server: the messages that a client has in the end are those of the thread."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from ag_ui import core

from clew import Session
from clew.ag_ui.mapping import convert_thread
from clew.local import Reply, ToolCall
from clew_workflows.thread.entries import Entry
from tests.support import toolbox
from tests.support.ag_ui import AgUiClient
from tests.support.holding import hold_intake, note_answers, run_holding_worker, wait_for_answers
from tests.support.rolling import make_id
from tests.support.scripts import FOUNDED, PausedModel, make_tool_script
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until

TEXT = "Good morning, how are you today? " * 5


def answer(decision: object, call_id: str = "tool00001") -> list[core.ResumeEntry]:
    """Answer an interrupt."""
    return [core.ResumeEntry(interrupt_id=call_id, status="resolved", payload=decision)]


def get_outcome(event: core.Event) -> Any:
    """Get the outcome of a run that has finished."""
    assert isinstance(event, core.RunFinishedEvent)
    return event.outcome


def get_error(event: core.Event) -> str | None:
    """Get the code of a run that has failed."""
    assert isinstance(event, core.RunErrorEvent)
    return event.code


async def check_messages(client: AgUiClient, session: Session) -> None:
    """Compare the client's messages with the thread; the protocol streams no `error` of a tool message."""
    thread = await convert_thread(session.read(kind="ai_message"))
    for message in thread:
        if isinstance(message, core.ToolMessage):
            message.error = None
    assert client.messages == thread


async def test_a_reply_is_streamed(stack: Stack) -> None:
    """The run begins and ends, the text comes between, with the usage of the request."""
    session = await stack.open(lambda _: Reply(TEXT, tokens_per_second=20))
    client = AgUiClient(session)
    ended = await client.say("hello")
    assert client.list_types() == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert len(client.events) > 5
    assert get_outcome(ended).type == "success"
    assert isinstance(ended, core.RunFinishedEvent)
    assert ended.usage
    assert ended.usage[0].input_tokens
    await check_messages(client, session)


async def test_a_repeated_input_is_served_once(stack: Stack) -> None:
    """The message's id is the request's. The answer comes again for a client that has not got it."""
    session = await stack.open()
    client = AgUiClient(session)
    await client.say("hello")
    del client.messages[1:]
    await client.run()
    await check_messages(client, session)
    assert len(await session.entries(kind="run")) == 1
    await client.say("bye")
    await check_messages(client, session)


async def test_a_message_is_answered_that_the_session_decides_about_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins, and its events follow once the message is decided."""
    async with run_holding_worker(stack) as (clew, store):
        session = await clew.open(make_id(), model=stack.add_model(TEXT))
        client = AgUiClient(session)
        with note_answers(monkeypatch) as answers:
            async with hold_intake(session, store):
                saying = asyncio.create_task(client.say("hello"))
                await wait_for_answers(answers, "entries")
        assert get_outcome(await saying).type == "success"
        await check_messages(client, session)


async def test_a_round_of_tools(stack: Stack) -> None:
    """Calls are sent with their arguments and results, also when one fails."""
    session = await stack.open(
        make_tool_script(ToolCall("add", {"a": 1, "b": 2}), ToolCall("explode", {})), tools=["add", "explode"]
    )
    client = AgUiClient(session)
    await client.say("go")
    await check_messages(client, session)
    arguments = [event.delta for event in client.events if isinstance(event, core.ToolCallArgsEvent)]
    assert arguments == ['{"a":1,"b":2}', "{}"]
    results = {
        event.tool_call_id: event.metadata for event in client.events if isinstance(event, core.ToolCallResultEvent)
    }
    assert results == {"tool00001": None, "tool00002": {"is_error": True}}


@pytest.mark.parametrize("scope", ["call", "round"])
async def test_an_approval_interrupts_and_resumes(stack: Stack, scope: str) -> None:
    """The run ends with an interrupt for each call; the next one has the rest, and nothing twice.

    Also where the call that is approved first waits for the decision about the other.
    """
    calls = ToolCall("guarded", {}), ToolCall("guarded", {})
    session = await stack.open(make_tool_script(*calls), tools=["guarded"], approval_scope=scope)
    client = AgUiClient(session)
    outcome = get_outcome(await client.say("go"))
    assert [(one.id, one.tool_call_id, one.reason) for one in outcome.interrupts] == [
        ("tool00001", "tool00001", "tool_call"), ("tool00002", "tool00002", "tool_call"),
    ]  # fmt: skip
    again = get_outcome(await client.run(resume=answer({"approved": True})))
    assert [one.id for one in again.interrupts] == ["tool00002"]
    ended = await client.run(resume=answer({"approved": False, "reason": "too dear"}, "tool00002"))
    assert get_outcome(ended).type == "success"
    await check_messages(client, session)
    assert "too dear" in str([message.content for message in client.messages])


async def test_a_call_that_waits_for_the_decision_about_another_is_not_waited_for(stack: Stack) -> None:
    """It needs no approval of its own, and runs once the round is approved."""
    calls = ToolCall("add", {"a": 1, "b": 2}), ToolCall("guarded", {})
    session = await stack.open(make_tool_script(*calls), tools=["add", "guarded"], approval_scope="round")
    client = AgUiClient(session)
    (interrupt,) = get_outcome(await client.say("go")).interrupts
    assert interrupt.tool_call_id == "tool00002"
    assert get_outcome(await client.run(resume=answer(True, "tool00002"))).type == "success"
    await check_messages(client, session)


async def test_a_repeated_answer_has_no_effect(stack: Stack) -> None:
    """The client did not get the answer to its answer."""
    session = await stack.open(make_tool_script(ToolCall("guarded", {})), tools=["guarded"])
    client = AgUiClient(session)
    await client.say("go")
    before = list(client.messages)
    await client.run(resume=answer(True))
    client.messages = before
    assert get_outcome(await client.run(resume=answer(True))).type == "success"
    await check_messages(client, session)
    assert len(await session.entries(kind="approval")) == 1


async def test_an_interrupt_that_is_cancelled_is_a_denial(stack: Stack) -> None:
    """The run continues without the tool."""
    session = await stack.open(make_tool_script(ToolCall("guarded", {})), tools=["guarded"])
    client = AgUiClient(session)
    await client.say("go")
    cancelled = [core.ResumeEntry(interrupt_id="tool00001", status="cancelled")]
    assert get_outcome(await client.run(resume=cancelled)).type == "success"
    await check_messages(client, session)


@pytest.mark.parametrize("payload", [None, "yes", {"approved": "yes"}, {"editedArgs": {}}, [True]])
async def test_an_answer_that_is_none_decides_nothing(stack: Stack, payload: object) -> None:
    """The call still waits, and a client that connects is asked again."""
    session = await stack.open(make_tool_script(ToolCall("guarded", {})), tools=["guarded"])
    client = AgUiClient(session)
    await client.say("go")
    assert get_error(await client.run(resume=answer(payload))) == "invalid_input"
    assert get_outcome(await client.run()).interrupts[0].id == "tool00001"


async def test_a_client_that_must_not_decide(stack: Stack) -> None:
    """Its answer is refused, and its run goes on when somebody else has decided."""
    session = await stack.open(make_tool_script(ToolCall("guarded", {})), tools=["guarded"])
    client = AgUiClient(session, may_approve=False)
    running = asyncio.create_task(client.say("go"))
    async for event in session.follow(0):
        if event.type == "approval_required":
            break
    refused = AgUiClient(session, may_approve=False)
    assert get_error(await refused.run(resume=answer(True))) == "invalid_input"
    await session.approve("tool00001")
    assert get_outcome(await running).type == "success"
    await check_messages(client, session)


async def test_a_frontend_tool_is_answered_by_the_client(stack: Stack) -> None:
    """The run ends with the call pending; the result rides with the next input, and a repeated one is harmless."""
    calls = ToolCall("order", {"item": "tea"}), ToolCall("add", {"a": 1, "b": 2})
    session = await stack.open(make_tool_script(*calls), tools=["order", "add"])
    client = AgUiClient(session, frontend_tools=["order"])
    assert get_outcome(await client.say("go")).pending_tool_call_ids == ["tool00001"]
    client.messages.append(core.ToolMessage(id="mine", tool_call_id="tool00001", content="ordered"))
    before = list(client.messages)
    assert get_outcome(await client.run()).type == "success"
    client.messages = before
    assert get_outcome(await client.run()).type == "success"
    results = await session.entries(tool_call_id="tool00001")
    assert [entry.payload["content"] for entry in results] == ["ordered"]
    assert [message.role for message in client.messages] == ["user", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize("may_approve", [True, False])
async def test_all_calls_that_wait_are_told(stack: Stack, may_approve: bool) -> None:
    """Approvals as interrupts, then the client's own calls; without the right to approve, its own calls at once."""
    calls = ToolCall("guarded", {}), ToolCall("order", {"item": "tea"}), ToolCall("guarded", {})
    session = await stack.open(make_tool_script(*calls), tools=["guarded", "order"])
    client = AgUiClient(session, frontend_tools=["order"], may_approve=may_approve)
    # Another viewer shares what is read of the session.
    async with aclosing(session.follow(0)) as viewing:
        await anext(viewing)
        outcome = get_outcome(await client.say("go"))
        if may_approve:
            assert [one.id for one in outcome.interrupts] == ["tool00001", "tool00003"]
            outcome = get_outcome(await client.run(resume=answer(True)))
            assert [one.id for one in outcome.interrupts] == ["tool00003"]
            outcome = get_outcome(await client.run(resume=answer(False, "tool00003")))
        assert outcome.pending_tool_call_ids == ["tool00002"]
        client.messages.append(core.ToolMessage(id="mine", tool_call_id="tool00002", content="ordered"))
        if not may_approve:
            await session.approve("tool00001")
            await session.deny("tool00003")
        assert get_outcome(await client.run()).type == "success"
    roles = [message.role for message in client.messages]
    assert roles == ["user", "assistant", *["tool"] * 3, "assistant"]


async def test_a_client_cannot_answer_for_others(stack: Stack) -> None:
    """A call of an external tool that is not the client's waits for its own system."""
    session = await stack.open(make_tool_script(ToolCall("order", {"item": "tea"})), tools=["order"])
    client = AgUiClient(session, frontend_tools=["add"])
    request = await session.message("go", request_id="m1")
    async for event in session.follow(0):
        if event.type == "result_required":
            break
    forged = core.ToolMessage(id="mine", tool_call_id="tool00001", content="ordered")
    client.messages = [core.UserMessage(id="m1", content="go"), forged]
    tools = [core.Tool(name="order", description="")]
    running = asyncio.create_task(client.run(tools=tools))
    async for event in request.events():
        if event.type == "result_required":
            break
    assert [call.tool_call_id for call in (await session.status()).pending_external_calls] == ["tool00001"]
    await session.submit_tool_result("tool00001", "sold out")
    await running
    (result,) = await session.entries(tool_call_id="tool00001")
    assert result.payload["content"] == "sold out"


async def test_failures_are_errors_with_the_contracts_words(stack: Stack) -> None:
    """Of the request, and of what the session refuses."""
    failing = await stack.open(lambda _: Reply.error(400, "no"))
    assert get_error(await AgUiClient(failing).say("hello")) == "bad_request"
    client = AgUiClient(failing)
    client.messages = [core.UserMessage(id="m", content=[core.ImagePart(source=core.UrlSource(value="http://x"))])]
    assert get_error(await client.run()) == "invalid_input"
    assert get_error(await AgUiClient(stack.clew.session("there-is-none")).run()) == "not_found"


async def test_a_cancelled_request(stack: Stack) -> None:
    """The run says so."""
    session = await stack.open(lambda _: Reply(TEXT, tokens_per_second=5))
    client = AgUiClient(session)
    running = asyncio.create_task(client.say("hello"))
    async for event in session.follow(0):
        if event.type == "text":
            break
    await session.cancel()
    assert get_outcome(await running).type == "cancelled"
    await check_messages(client, session)


@pytest.mark.slow
async def test_a_busy_session_refuses_or_queues(stack: Stack) -> None:
    """As the options of the message say."""
    session = await stack.open(make_tool_script(ToolCall("wait_for", {"gate": "ag-ui"})), tools=["wait_for"])
    first = AgUiClient(session)
    running = asyncio.create_task(first.say("go"))
    async for event in session.follow(0):
        if event.type == "tool_started":
            break
    second = AgUiClient(session)
    second.messages = [core.UserMessage(id="other", content="hello")]
    assert get_error(await second.run()) == "busy"
    queued = AgUiClient(session, on_busy="queue")
    queued.messages = [core.UserMessage(id="queued", content="hello")]
    waiting = asyncio.create_task(queued.run())
    # A third client connects: it gets the thread, and the rest of what runs.
    third = AgUiClient(session)
    following = asyncio.create_task(third.run())
    await wait_until(lambda: len(third.events) > 1)
    toolbox.get_gate("ag-ui").set()
    assert get_outcome(await running).type == get_outcome(await waiting).type == "success"
    assert get_outcome(await following).type == "success"
    assert third.messages == first.messages
    await second.run()
    third.messages = []
    await third.run()
    await check_messages(third, session)


async def test_connections_that_break_anywhere(stack: Stack) -> None:
    """A client that comes back with the messages that it has gets the rest, wherever the connection broke."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply("I add. " * 10, tool_calls=[ToolCall("add", {"a": 1, "b": 2})], tokens_per_second=40)
        return Reply(TEXT, tokens_per_second=60)

    session = await stack.open(script, tools=["add"])
    chosen = random.Random(13)
    client = AgUiClient(session)
    ended = await client.say("go", stop_after=3)
    breaks = 0
    while not isinstance(ended, core.RunFinishedEvent):
        breaks += 1
        ended = await client.run(stop_after=chosen.randint(1, 12))
    assert breaks > 2
    await check_messages(client, session)


async def test_a_reply_that_ends_while_a_client_connects_reaches_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that the client gets does not have the reply yet, and no request is active any more."""
    model = PausedModel()
    session = await stack.open(model)
    request = await session.message("hello")
    await model.called.wait()
    read = session.read

    async def read_and_end(**options: Any) -> AsyncIterator[Entry]:
        async for entry in read(**options):
            yield entry
        model.free.set()
        await request.result()

    client = AgUiClient(session)
    with monkeypatch.context() as patch:
        patch.setattr(session, "read", read_and_end)
        await client.run()
    assert [message.role for message in client.messages] == ["user", "assistant"]
    await check_messages(client, session)


async def test_sources_reach_the_client(stack: Stack) -> None:
    """While it follows, and when it connects later: the messages are the same."""
    session = await stack.open(lambda _: FOUNDED)
    client = AgUiClient(session)
    await client.say("Where does tea grow?")
    await check_messages(client, session)
    (said,) = (message for message in client.messages if isinstance(message, core.AssistantMessage))
    assert said.metadata == {"clew.citations": list(FOUNDED.citations)}
    assert [call.function.name for call in said.tool_calls or ()] == ["web_search", "code_execution"]
    later = AgUiClient(session)
    await later.run()
    await check_messages(later, session)


@pytest.mark.slow
def test_without_the_extra_the_error_names_what_to_install() -> None:
    """`clew` itself imports without it."""
    code = "import sys; sys.modules['ag_ui'] = None; import clew; import clew.ag_ui"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'clew[ag-ui]'" in done.stderr
