"""Messages, requests and the end of a session, on a real server."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from clew import (
    Busy,
    Closed,
    ContextPolicy,
)
from clew.contract.limits import MAX_MESSAGE_BYTES
from clew.errors import (
    EmptyContent,
    InvalidInput,
    InvalidTokenBudget,
    TooLarge,
    UnknownRequest,
)
from clew.local import Reply
from clew.session.events import TextAdded
from tests.support.scripts import list_kinds
from tests.support.stack import Stack


async def test_a_message_is_answered_and_every_fact_is_an_entry(stack: Stack) -> None:
    """A request leaves its question, its answer and its outcome in the thread, after the configuration at seq 0."""
    session = await stack.open("I am fine.", system_prompt="Be brief.")
    request = await session.message("How are you?")
    outcome = await request.result()
    assert await request.answer() == "I am fine."
    assert (outcome.status, outcome.termination_reason, outcome.iterations) == ("completed", "final_answer", 1)
    assert await list_kinds(session) == ["config", "user", "assistant", "run"]
    assert outcome.answer_seq == 2
    assert outcome.last_seq == 3
    status = await session.status()
    assert (status.status, status.rev, status.request_id, status.usage.model_calls) == ("idle", 4, None, 1)


async def test_the_model_sees_the_projection_of_the_thread(stack: Stack) -> None:
    """The second call gets the prompt and the whole conversation, in order, with the model options of the session."""
    session = await stack.open(
        lambda body: Reply(f"answer {len(body['messages'])}"),
        system_prompt="Be brief.",
        model_options={"temperature": 0.5, "max_output_tokens": 77, "stop": ["END"]},
    )
    await session.ask("first")
    await session.ask("second")
    model = (await session.status()).model
    sent = stack.list_requests(model)[-1]
    assert [(message["role"], message["content"]) for message in sent["messages"]] == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "answer 2"),
        ("user", "second"),
    ]
    assert (sent["temperature"], sent["max_tokens"], sent["stop"]) == (0.5, 77, ["END"])


async def test_a_session_that_is_busy_rejects_and_changes_nothing(stack: Stack) -> None:
    """The second message is refused, and neither the thread nor the history knows of it."""
    release, called = asyncio.Event(), asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await release.wait()
        return Reply("done")

    session = await stack.open(script)
    first = await session.message("one")
    await called.wait()
    before = (await session.status()).rev
    with pytest.raises(Busy):
        await session.message("two")
    assert (await session.status()).rev == before
    release.set()
    assert await first.answer() == "done"
    assert await session.ask("two") == "done"


async def test_a_request_id_is_answered_again_and_never_run_again(stack: Stack) -> None:
    """The same request id, sent while it runs and after it has ended, is one request."""
    session = await stack.open(lambda body: Reply(f"{len(body['messages'])}"))
    first, again = await asyncio.gather(
        session.message("one", request_id="r-1"), session.message("one", request_id="r-1")
    )
    assert await first.answer() == await again.answer() == "1"
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    repeated: dict[str, Any] = await handle.execute_update("message", {"content": "one", "request_id": "r-1"})
    assert repeated == (await first.result()).as_dict()
    assert await list_kinds(session) == ["config", "user", "assistant", "run"]
    assert (await session.request("r-1").result()).answer_seq == 2
    with pytest.raises(UnknownRequest):
        await session.request("r-2").result()


async def test_two_who_open_at_once_get_one_session(stack: Stack) -> None:
    """Opening an existing session resumes it; it keeps its first configuration."""
    session_id, model = f"test-{uuid.uuid4().hex}", stack.add_model("one and the same")
    opened = await asyncio.gather(*(stack.clew.open(session_id, model=model) for _ in range(5)))
    await opened[0].ask("hello")
    assert (await opened[4].status()).rev == 4
    assert await (await stack.clew.open(session_id)).ask("again") == "one and the same"


async def test_refusals_come_typed_and_leave_nothing(stack: Stack) -> None:
    """Invalid input is refused with a typed error, and neither thread nor history grows."""
    session = await stack.open()
    await session.ask("hello")
    before = (await session.status()).rev
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    events = (await handle.describe()).raw_description.workflow_execution_info.history_length
    with pytest.raises(EmptyContent):
        await session.message("  \n ")
    with pytest.raises(TooLarge):
        await session.message("x" * MAX_MESSAGE_BYTES)
    with pytest.raises(InvalidInput):
        await session.message("hello \ud800")
    with pytest.raises(InvalidInput):
        await session.message("hello", context_policy=ContextPolicy(window="epoch", token_estimator="heuristic"))
    with pytest.raises(InvalidTokenBudget):
        await session.message("hello", context_policy=ContextPolicy(max_input_tokens=10, reserve_output_tokens=10))
    with pytest.raises(InvalidTokenBudget):
        await session.window(0)
    with pytest.raises(InvalidInput):
        await session.context(call_id="call-99")
    assert (await session.status()).rev == before
    assert (await handle.describe()).raw_description.workflow_execution_info.history_length == events


async def test_the_last_byte_within_the_cap_is_taken(stack: Stack) -> None:
    """A message whose payload is exactly at the cap is answered; one byte more is refused."""
    policy = ContextPolicy(max_input_tokens=100_000)
    session = await stack.open("ok", context_policy=policy)
    room = MAX_MESSAGE_BYTES - len('{"content":""}')
    with pytest.raises(TooLarge):
        await session.message("y" * (room + 1))
    assert await session.ask("y" * room) == "ok"
    (entry,) = await session.entries(from_seq=1, limit=1)
    assert len(entry.payload["content"]) == room


async def test_a_request_may_bring_its_own_model_and_policy(stack: Stack) -> None:
    """They hold for that request only, and `context(call_id=…)` shows the context under them."""
    session = await stack.open("usual")
    await session.ask("one")
    other = stack.add_model("special")
    policy = ContextPolicy(max_messages=1)
    assert await session.ask("two", model=other, context_policy=policy) == "special"
    assert await session.ask("three") == "usual"
    calls = [entry.refs["call_id"] for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    seen = [await session.context(call_id=call_id) for call_id in calls]
    assert [len(context.messages) for context in seen] == [1, 1, 5]
    recipes = [entry.payload["recipe"] for entry in await session.entries() if "recipe" in entry.payload]
    assert [recipe["digest"] for recipe in recipes] == [context.meta.digest for context in seen]


async def test_at_most_six_wait_and_the_seventh_is_told_so_at_once(stack: Stack) -> None:
    """Six callers of one request are kept waiting; the others get `running` at once."""
    release = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        await release.wait()
        return Reply("done")

    session = await stack.open(script)
    request = await session.message("go", request_id="r")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    waits = [asyncio.create_task(handle.execute_update("await_request", {"request_id": "r"})) for _ in range(7)]
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=5)
    told = [task.result()["status"] for task in done]
    assert told
    assert set(told) == {"running"}
    release.set()
    assert await request.answer() == "done"
    statuses = [(await task)["status"] for task in waits]
    assert statuses.count("completed") == 5, "the one who asked and five more"


async def test_a_reply_is_seen_to_grow(stack: Stack) -> None:
    """`events` yields the reply as it comes; the texts together are what is committed."""
    text = " ".join(f"word{number}" for number in range(30))
    session = await stack.open(lambda _body: Reply(text, tokens_per_second=25))
    request = await session.message("go")
    texts = [event.text async for event in request.events() if isinstance(event, TextAdded)]
    assert len(texts) >= 3
    assert "".join(texts) == text == await request.answer()


async def test_close_cancels_what_runs_and_ends_the_session(stack: Stack) -> None:
    """The waiting caller gets `cancelled`, the thread is complete, and later messages are refused as closed."""
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await asyncio.Event().wait()
        return Reply("never")

    session = await stack.open(script)
    request = await session.message("go")
    await called.wait()
    await session.close("enough")
    outcome = await request.result()
    assert (outcome.status, outcome.termination_reason) == ("cancelled", "closed")
    ended = ["config", "user", "run", "session"]
    assert await list_kinds(session) == ended, "a closed session still answers queries"
    (told,) = await session.entries(kind="session")
    assert told.payload == {"event": "closed", "reason": "enough"}
    assert outcome.reason == "enough"
    with pytest.raises(Closed):
        await session.message("more")
    again = await stack.clew.open(session.id, model="scripted:any")
    assert await list_kinds(again) == ended, "opened again it goes on where it was"


async def test_an_operators_cancellation_ends_a_session_as_whole_as_close_does(stack: Stack) -> None:
    """If the workflow is cancelled, the request gets its outcome and the thread is complete."""
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await asyncio.Event().wait()
        return Reply("never")

    session = await stack.open(script)
    request = await session.message("go")
    await called.wait()
    await stack.clew.temporal.get_workflow_handle(session.id).cancel()
    assert (await request.result()).status == "cancelled"
    assert await list_kinds(session) == ["config", "user", "run", "session"]
    (told,) = await session.entries(kind="session")
    assert told.payload["reason"].startswith("the workflow was cancelled")


async def test_a_message_can_open_the_session(stack: Stack) -> None:
    """Update-with-start: one call starts the session and sends the message; the configuration is seq 0."""
    session_id = f"test-{uuid.uuid4().hex}"
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        "AgentSession",
        {"config": {"model": stack.add_model("welcome")}},
        id=session_id,
        task_queue=stack.clew.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    outcome: dict[str, Any] = await stack.clew.temporal.execute_update_with_start_workflow(
        "message", {"content": "hello"}, start_workflow_operation=start
    )
    assert outcome["status"] == "completed"
    assert await list_kinds(stack.clew.session(session_id)) == ["config", "user", "assistant", "run"]


async def test_a_large_context_comes_in_pages_and_arrives_whole(stack: Stack) -> None:
    """A context larger than a page reaches the model and readers completely."""
    policy = ContextPolicy(max_input_tokens=2_000_000)
    session = await stack.open("ok", context_policy=policy)
    for number in range(6):
        await session.ask(f"{number} " + "lorem ipsum " * 20_000)
    context = await session.context()
    assert len(context.messages) == 12
    assert sum(len(message["content"]) for message in context.messages) > 1_400_000
    assert len(stack.list_requests((await session.status()).model)[-1]["messages"]) == 11
    assert len(await session.transcript()) == 12


async def test_what_arrives_while_an_answer_does_is_never_lost(stack: Stack) -> None:
    """Signals that arrive together with model results are all in the thread, and so are the answers."""
    session = await stack.open()
    handle = stack.clew.temporal.get_workflow_handle(session.id)

    async def signal() -> None:
        for number in range(40):
            await handle.signal("no_such_signal", {"number": number})

    signalling = asyncio.gather(*(signal() for _ in range(3)))
    for number in range(12):
        assert await session.ask(f"{number}") == "fine"
    await signalling
    entries = await session.entries()
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert sum(entry.kind == "input" for entry in entries) == 120
    assert sum(entry.kind == "run" for entry in entries) == 12
