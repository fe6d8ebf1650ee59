"""A request's answer comes from the end of the history if that has it, else from the session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from clew.errors import Busy, RequestFailed
from clew.local import Reply, ToolCall
from clew.session import transport
from tests.support.encrypted import make_encryption, run_worker
from tests.support.rolling import SlowModel, make_id, run_rolling_worker
from tests.support.scripts import FOUNDED
from tests.support.stack import Stack, get_last_message


@contextmanager
def count_queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the queries that clients send."""
    names: list[str] = []
    query = WorkflowHandle.query

    async def note(self: WorkflowHandle[Any, Any], name: str, *args: Any, **options: Any) -> Any:
        names.append(name)
        return await query(self, name, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(WorkflowHandle, "query", note)
        yield names


def add_when_asked(body: dict[str, Any]) -> Reply:
    if get_last_message(body)["content"] == "add":
        return Reply("I add them.", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    return Reply(f"the answer to {get_last_message(body)['content']}")


async def test_an_answer_needs_no_worker(stack: Stack) -> None:
    """Once the outcome is known, the text can be read while no worker runs."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model(add_when_asked), tools=["add"])
        assert await session.ask("1") == "the answer to 1"
        request = await session.message("2")
        assert (await request.result()).status == "completed"
    assert await request.answer() == "the answer to 2"


async def test_no_query_is_sent_for_a_new_answer(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a session without encryption, nor in one with it; also not after tool calls."""
    async with run_worker(stack, make_encryption("k1")) as encrypted:
        for each in (stack, encrypted):
            session = await each.open(add_when_asked, tools=["add"])
            with count_queries(monkeypatch) as queries:
                assert await session.ask("hello") == "the answer to hello"
                assert await session.ask("add") == "the answer to 3"
            assert not queries


async def test_an_answer_that_others_have_followed_is_read_from_the_session(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest model call is another run's, or the call is no longer among the newest events."""
    session = await stack.open(add_when_asked)
    first, second = await session.message("1"), await session.message("2", on_busy="queue")
    assert (await first.result()).status == (await second.result()).status == "completed"
    with count_queries(monkeypatch) as queries:
        assert await first.answer() == "the answer to 1"
        assert await second.answer() == "the answer to 2"
        assert queries == ["entries"]
    for turn in range(3):
        await session.ask(str(turn))
    assert await second.answer() == "the answer to 2"


async def test_a_worker_with_another_form_of_results_is_asked(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history is the workers' own: clients read it if they can."""
    session = await stack.open(add_when_asked)
    monkeypatch.setattr("clew.session.request.MODEL_CALL", "call_model_2")
    with count_queries(monkeypatch) as queries:
        assert await session.ask("hello") == "the answer to hello"
    assert queries == ["entries"]


async def test_a_slow_answer_is_asked_for_again(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that sends the message waits for a short answer only. The message is in the thread once."""
    monkeypatch.setattr(transport, "ANSWER_SECONDS", 0.5)
    model = SlowModel()
    session = await stack.open(model)
    asking = asyncio.create_task(session.ask("hello"))
    await model.wait_for_call()
    await asyncio.wait([asking], timeout=2 * transport.ANSWER_SECONDS)
    assert not asking.done()
    model.release()
    assert await asking
    assert [message["role"] for message in await session.transcript()] == ["user", "assistant"]


@pytest.mark.skipif(
    sys.version_info < (3, 11, 3), reason="asyncio.timeout of this Python takes the earlier cancellation for its own"
)
async def test_a_caller_that_has_caught_a_cancellation_goes_on(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a refusal nor a slow answer cancels it again."""
    monkeypatch.setattr(transport, "ANSWER_SECONDS", 0.5)
    model = SlowModel()
    session = await stack.open(model, on_busy="reject")
    first = await session.message("1")
    await model.wait_for_call()

    started = asyncio.Event()

    async def ask_after_all() -> str:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        with pytest.raises(Busy):
            await session.ask("2")
        model.release()
        await first.result()
        asyncio.get_running_loop().call_later(1, model.release)
        return await session.ask("3")

    asking = asyncio.create_task(ask_after_all())
    await started.wait()
    asking.cancel()
    assert await asking == "re: 3"


async def test_a_cancelled_caller_is_cancelled(stack: Stack) -> None:
    """While it waits for the answer. The session works on."""
    model = SlowModel()
    session = await stack.open(model)
    asking = asyncio.create_task(session.ask("hello", request_id="r-1"))
    await model.wait_for_call()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    model.release()
    assert await session.request("r-1").answer()


async def test_a_reply_has_the_citations_of_the_answer(stack: Stack) -> None:
    """Also that of a request with an answer type; the transcript has them, too."""
    session = await stack.open(lambda _: FOUNDED)
    request = await session.message("Where does tea grow?")
    reply = await request.reply()
    assert (reply.content, reply.citations) == (await request.answer(), list(FOUNDED.citations))
    assert reply.provider_calls == list(FOUNDED.provider_calls)
    assert await session.request(request.request_id, answer=str).reply() == reply
    newest = (await session.transcript())[-1]
    assert (newest["citations"], newest["provider_calls"]) == (reply.citations, reply.provider_calls)


async def test_a_request_without_an_answer_has_no_reply(stack: Stack) -> None:
    """It raises what `answer` raises."""
    session = await stack.open(lambda _: Reply.error(400))
    request = await session.message("hello")
    with pytest.raises(RequestFailed):
        await request.reply()
