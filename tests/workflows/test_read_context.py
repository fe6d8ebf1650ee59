"""`ReadContext` as any language starts it: a dict in, a page of a context out, wherever the session is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from clew import Clew, ContextPolicy, Session
from clew.local import Reply
from clew.thread import Thread
from clew_activities.archive import Archive, Store
from clew_audit.audit import audit_session
from clew_workflows.thread.context.contexts import build_context
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    async with run_rolling_worker(stack) as clew:
        yield clew


async def read(clew: Clew, session_id: str, **asked: Any) -> dict[str, Any]:
    """The answer of the workflow."""
    answer: dict[str, Any] = await clew.temporal.execute_workflow(
        "ReadContext", {"session_id": session_id, **asked}, id=make_id(), task_queue=clew.task_queue, result_type=dict
    )
    return answer


async def get_refusal(clew: Clew, session_id: str, **asked: Any) -> ApplicationError:
    """How the workflow fails."""
    with pytest.raises(WorkflowFailureError) as ended:
        await read(clew, session_id, **asked)
    assert isinstance(ended.value.cause, ApplicationError)
    return ended.value.cause


@pytest.mark.slow
async def test_it_answers_as_the_query_does(stack: Stack, clew: Clew) -> None:
    """For the active lane, another one, a seq and a policy: of a live session, one that sleeps, and its fork."""
    session = await clew.open(make_id(), model=stack.add_model("fine"), tools=["add"], system_prompt="Be brief.")
    await session.ask("one")
    await session.switch_context("side", op_id="o-1")
    await session.ask("two " * 50)
    narrow = {"max_input_tokens": 400, "reserve_output_tokens": 10, "max_messages": 2}
    every: list[dict[str, Any]] = [
        {},
        {"context_ref": "default"},
        {"at_seq": 2},
        {"context_policy": narrow},
        {"call_id": "call-1"},
    ]
    fork = await session.fork()
    live = [await session._handle.workflow.query("context", asked) for asked in every]
    for asked, answer in zip(every, live, strict=True):
        assert await read(clew, session.id, **asked) == answer, asked
    await session.hibernate()
    for asked, answer in zip(every, live, strict=True):
        asleep = await read(clew, session.id, **asked)
        assert (asleep["messages"], asleep["meta"]["digest"]) == (answer["messages"], answer["meta"]["digest"])
    for asked, answer in zip(every, live, strict=True):
        assert (await read(clew, fork.id, **asked))["messages"] == answer["messages"]


async def read_first_page(clew: Clew, model: str) -> tuple[Session, dict[str, Any], dict[str, Any]]:
    """Read the first page of a large context, and have its session go on; returns what the rest is asked for by."""
    wide = ContextPolicy(max_input_tokens=2_000_000, reserve_output_tokens=100)
    session = await clew.open(make_id(), model=model, context_policy=wide)
    for turn in range(5):
        await session.ask(f"{turn} " + "long " * 50_000)
    first = await read(clew, session.id)
    await session.ask("meanwhile")
    return session, first, {"page": first["next_page"], "at_seq": first["at_seq"]}


@pytest.mark.slow
async def test_pages_are_of_one_context_while_the_session_goes_on(stack: Stack, clew: Clew) -> None:
    """Asked for with the `next_page` and `at_seq` of the answer, also when the session has rolled over since."""
    session, first, rest = await read_first_page(clew, stack.add_model("fine"))
    assert first["at_seq"] == first["meta"]["basis_last_seq"]
    second = await read(clew, session.id, **rest)
    assert second["meta"] == first["meta"]
    assert [message["content"][:2] for message in first["messages"] + second["messages"]][::2] == [
        f"{turn} " for turn in range(5)
    ]
    assert "next_page" not in second


@pytest.mark.slow
async def test_a_query_has_the_same_pages(stack: Stack) -> None:
    """Of what the session has not archived."""
    session, first, rest = await read_first_page(stack.clew, stack.add_model("fine"))
    assert await session._handle.workflow.query("context", {"at_seq": first["at_seq"]}) == first
    assert await session._handle.workflow.query("context", rest) == await read(stack.clew, session.id, **rest)


async def test_a_call_that_is_being_made_can_be_read(stack: Stack, clew: Clew) -> None:
    """The context of a call in flight can be read before its reply is in the thread."""
    called, answer = asyncio.Event(), asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        called.set()
        await answer.wait()
        return Reply("fine")

    session = await clew.open(make_id(), model=stack.add_model(script))
    request = await session.message("go")
    await called.wait()
    during = await read(clew, session.id, call_id="call-1")
    answer.set()
    await request.result()
    assert during["messages"] == [{"role": "user", "content": "go"}]
    assert (await read(clew, session.id, call_id="call-1"))["meta"]["digest"] == during["meta"]["digest"]


@pytest.mark.slow
async def test_what_cannot_be_read_has_its_word(stack: Stack) -> None:
    """Of the contract; the workflow fails with it, and no task does."""
    store = Store.from_url("memory://")
    async with run_rolling_worker(stack, store=store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        await session.hibernate()
        assert (await get_refusal(clew, "nobody")).type == "not_found"
        overflow = {"context_policy": {"max_input_tokens": 2, "reserve_output_tokens": 0}}
        words: dict[str, list[dict[str, Any]]] = {
            "invalid_input": [
                {"call_id": "call-99"},
                {"at_seq": -1},
                {"surprise": 1},
                {"context_policy": {"projector": "magic"}},
                {"pending": []},
                {"pending": [{"role": "assistant", "content": "no"}]},
                {"pending": [{"role": "user", "content": "one"}], "call_id": "call-1"},
            ],
            "empty_content": [{"pending": [{"role": "user", "content": " "}]}],
            "invalid_token_budget": [{"context_policy": {"max_input_tokens": 0}}],
            "context_overflow": [overflow],
        }
        for word, some in words.items():
            for asked in some:
                assert (await get_refusal(clew, session.id, **asked)).type == word, asked
        # What cannot be told is an error where it is asked for, and an answer in a preview.
        pending = [{"role": "user", "content": "two"}]
        assert (await read(clew, session.id, pending=pending, **overflow))["meta"]["fits"] is False
        segment = next(iter([path async for path in store.list("default") if "/segments/" in path]))
        await store.delete(segment)
        damaged = await get_refusal(clew, session.id)
        assert (damaged.type, segment in damaged.message) == ("archive_damaged", True)


@pytest.mark.slow
async def test_every_seq_of_an_archive_is_that_of_the_whole_thread(stack: Stack, clew: Clew) -> None:
    """The same messages and the same `meta` as the thread read as a whole gives."""
    session = await clew.open(
        make_id(),
        model=stack.add_model("fine"),
        context_policy=ContextPolicy(max_input_tokens=900, reserve_output_tokens=0),
    )
    for turn in range(20):
        await session.ask(f"turn {turn} " + "words " * 60)
    whole = Thread(await session.entries())
    for at_seq in range(0, whole.rev, 9):
        answer = await read(clew, session.id, at_seq=at_seq)
        expected = build_context(whole, at_seq=at_seq)
        assert (answer["messages"], answer["meta"]) == (expected.messages, expected.meta.as_dict())


@pytest.mark.slow
async def test_it_answers_as_the_session_and_the_audit_do_after_a_change_to_epochs(stack: Stack, clew: Clew) -> None:
    """The session has rolled over under a small sliding window. Each call's context is the one that was sent."""
    small = ContextPolicy(max_input_tokens=1_500, reserve_output_tokens=200)
    session = await clew.open(make_id(), model=stack.add_model("fine"), context_policy=small)
    for number in range(36):
        if number == 28:
            await session.configure(context_policy=ContextPolicy(window="epoch"))
        await session.ask(f"{number} " + "some words of a user " * 40)
    sent = {
        entry.refs["call_id"]: entry.recipe.digest for entry in await session.entries() if entry.recipe is not None
    }
    assert len(sent) == 36
    for call_id, digest in sent.items():
        assert (await session.context(call_id=call_id)).meta.digest == digest
        assert (await read(clew, session.id, call_id=call_id))["meta"]["digest"] == digest
    report = await audit_session(clew.temporal, Archive(stack.store, "default"), session.id)
    assert report.clean, report.differences
    assert len(report.runs) > 2
