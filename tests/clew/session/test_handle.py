"""A session that does not exist is `NotFound`, one that has ended is `Closed`: the error says what continues it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from clew import ContextPolicy, NotFound, Session
from clew.errors import Closed, Interrupted, InvalidTokenBudget, UnsupportedStrategy
from clew.session import handle
from clew.session.connection import Clew
from clew_activities.archive import Archive
from tests.support.command_line import read_error, run_clew
from tests.support.examples import mark_slow_except
from tests.support.rolling import make_id
from tests.support.scripts import PausedModel
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until

# A session that does not exist is `NotFound`, one that has ended is `Closed`.


Verb = Callable[[Session], Awaitable[Any]]


async def read_first_event(session: Session) -> object:
    return await anext(aiter(session.follow(from_seq=0)))


UPDATES: dict[str, Verb] = {
    "message": lambda session: session.message("hi"),
    "ask": lambda session: session.ask("hi"),
    "result": lambda session: session.request("r-1").result(),
    "steer": lambda session: session.steer("hi"),
    "inject": lambda session: session.inject("hi"),
    "cancel": lambda session: session.cancel(),
    "approve": lambda session: session.approve("tool00001"),
    "deny": lambda session: session.deny("tool00001"),
    "submit_tool_result": lambda session: session.submit_tool_result("tool00001", "x"),
    "replace_context": lambda session: session.replace_context([], op_id="o"),
    "switch_context": lambda session: session.switch_context("draft", op_id="o"),
    "compact": lambda session: session.compact(op_id="o"),
    "expand": lambda session: session.expand(op_id="o"),
    "pin": lambda session: session.pin(1, op_id="o"),
    "unpin": lambda session: session.unpin(1, op_id="o"),
    "summarize": lambda session: session.summarize(),
    "configure": lambda session: session.configure(on_busy="queue"),
    "checkpoint": lambda session: session.checkpoint(),
    "hibernate": lambda session: session.hibernate(),
    "close": lambda session: session.close(),
}
READS: dict[str, Verb] = {
    "context": lambda session: session.context(),
    "transcript": lambda session: session.transcript(),
    "window": lambda session: session.window(1000),
    "entries": lambda session: session.entries(),
    "fork": lambda session: session.fork(),
    "follow": read_first_event,
}
STATUS: dict[str, Verb] = {
    "status": lambda session: session.status(),
    "list_waiting_calls": lambda session: session.list_waiting_calls(),
}


@pytest.mark.parametrize("name", [*UPDATES, *READS, *STATUS])
async def test_each_verb_says_that_there_is_no_session(stack: Stack, name: str) -> None:
    """Updates, queries, reads of the archive, and `follow`."""
    session_id = make_id()
    with pytest.raises(NotFound, match=f"there is no session '{session_id}'"):
        await (UPDATES | READS | STATUS)[name](stack.clew.session(session_id))


@pytest.fixture(scope="module")
async def refused(stack: Stack) -> Session:
    """A session whose start was refused, and has failed."""
    session = await stack.open(strategy="cot")
    with pytest.raises(UnsupportedStrategy):
        await session._handle.wait_for_end()
    return session


@pytest.mark.parametrize("name", [*UPDATES, *READS, *STATUS])
async def test_each_verb_says_why_a_start_was_refused(refused: Session, name: str) -> None:
    """Updates, queries, reads of the archive, and `follow`."""
    with pytest.raises(UnsupportedStrategy):
        await (UPDATES | READS | STATUS)[name](refused)


async def test_the_first_message_says_why_the_start_was_refused(stack: Stack) -> None:
    """It may arrive before the workflow has failed, while it fails, or later."""
    policy = ContextPolicy(max_input_tokens=100, reserve_output_tokens=200)
    refused = []
    for _ in range(6):
        session = await stack.open(context_policy=policy)
        with pytest.raises(InvalidTokenBudget):
            await session.ask("hi")
        refused.append(session.id)
    with pytest.raises(InvalidTokenBudget):
        await stack.clew.open(refused[0])


async def test_a_refused_start_can_be_repeated(stack: Stack) -> None:
    """With a configuration that the session accepts."""
    session = await stack.open(strategy="cot")
    with pytest.raises(UnsupportedStrategy):
        await session.ask("hi")
    again = await stack.clew.open(session.id, model=stack.add_model("fine"))
    assert await again.ask("hi") == "fine"


async def test_the_connection_says_it_too(stack: Stack) -> None:
    """`open` without an agent or a model, and `delete`."""
    with pytest.raises(NotFound):
        await stack.clew.open(make_id())
    with pytest.raises(NotFound):
        await stack.clew.delete(make_id())


async def test_a_session_that_has_ended_is_closed(stack: Stack) -> None:
    """Also when the server has forgotten its workflow: its archive has it, and answers the reads."""
    session = await stack.open()
    await session.ask("hello")
    await session.hibernate()
    with pytest.raises(Closed):
        await session.steer("hi")
    forgotten = await forget(stack, session)
    for verb in (UPDATES["message"], UPDATES["cancel"], *STATUS.values()):
        with pytest.raises(Closed, match="open it to continue it"):
            await verb(forgotten)
    assert [message["role"] for message in await forgotten.transcript()] == ["user", "assistant"]


async def test_without_a_worker_it_says_that_the_archive_was_not_looked_at(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without the session, and no worker that could read the archive."""
    monkeypatch.setattr(handle, "ABSENCE_TIMEOUT", timedelta(seconds=1))
    deserted = Clew(stack.clew.temporal, "deserted")
    with pytest.raises(NotFound, match="no worker has looked for its archive"):
        await deserted.session(make_id()).status()


async def forget(stack: Stack, session: Session) -> Session:
    """Make a session that only the archive knows, as when the server has deleted its workflow: a copy."""
    archive = Archive(stack.store, stack.clew.temporal.namespace)
    head = await archive.read_head(session.id)
    assert head
    newest = head.model_copy(update={"session_id": make_id()})
    await archive.set_head(newest, None)
    return stack.clew.session(newest.session_id)


# A session that has ended: its word in the status, in lists and in errors, and what continues it.


async def end(session: Session, how: str) -> None:
    match how:
        case "hibernated":
            await session.hibernate()
        case "closed":
            await session.close()
        case _:
            await session._handle.workflow.terminate("gone")
    await asyncio.gather(session._handle.workflow.result(), return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "remedy"),
    mark_slow_except(
        [("interrupted", "clew recover")],
        [("hibernated", "clew ask"), ("closed", "clew ask"), ("interrupted", "clew recover")],
    ),
)
async def test_every_end_has_its_word_and_says_what_continues_the_session(
    stack: Stack, how: str, remedy: str
) -> None:
    """In the status, in the lists, and in the errors of everything that needs a session that runs."""
    session, address = await stack.open("fine"), stack.server.address
    await session.ask("one")
    await end(session, how)
    status = await session.status()
    assert (status.status, status.closed) == (how, True)
    shown = await run_clew("status", session.id, address=address)
    assert f"status: {how}: `{remedy} {session.id}" in shown.out

    async def is_listed() -> bool:
        return [one.status async for one in stack.clew.sessions() if one.session_id == session.id] == [how]

    await wait_until(is_listed)
    words = {"hibernated": "hibernates", "closed": "is closed", "interrupted": "was interrupted"}
    expected = Interrupted if how == "interrupted" else Closed
    for call in (session.ask("two"), session.cancel(), session.configure(system_prompt="Be kind.")):
        with pytest.raises(Closed, match=words[how]) as refused:
            await call
        assert type(refused.value) is expected
        assert f"`{remedy} {session.id}" in str(refused.value)
    steered = await run_clew("steer", session.id, "more", address=address)
    assert read_error(steered) == (1, expected.type)
    asked = await run_clew("ask", session.id, "two", address=address)
    assert (asked.code, asked.out) == ((1, "") if how == "interrupted" else (0, "fine\n"))
    if how == "interrupted":
        assert read_error(asked) == (1, "interrupted")


def reopen_before_results(monkeypatch: pytest.MonkeyPatch, reopen: Callable[[], Awaitable[Any]]) -> None:
    """Have a session opened again after its end, once, before its client asks the server for that end."""
    wait = WorkflowHandle.result
    begun: list[str] = []

    async def wait_late(self: WorkflowHandle[Any, Any], **options: Any) -> Any:
        if not begun:
            begun.append(self.id)
            with suppress(WorkflowFailureError):
                await wait(self, **options)
            await reopen()
        return await wait(self, **options)

    monkeypatch.setattr(WorkflowHandle, "result", wait_late)


@pytest.mark.parametrize("how", ["hibernated", "closed"])
async def test_an_end_is_reported_although_the_session_was_opened_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The wait is for the workflow run that has ended, not for the end of the next one."""
    session = await stack.open("fine")
    await session.ask("one")
    reopen_before_results(monkeypatch, lambda: stack.clew.open(session.id))
    async with asyncio.timeout(PATIENCE_SECONDS):
        receipt = await (session.hibernate() if how == "hibernated" else session.close())
    monkeypatch.undo()
    assert await session.ask("two") == "fine"
    assert receipt.last_seq < (await session.status()).rev - 1


async def test_a_refused_start_is_explained_although_it_was_repeated(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is that of the workflow run that has failed."""
    session = await stack.open(strategy="cot")
    with pytest.raises(UnsupportedStrategy):
        await session._handle.wait_for_end()
    reopen_before_results(monkeypatch, lambda: stack.clew.open(session.id, model=stack.add_model("fine")))
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(UnsupportedStrategy):
            await session.steer("hi")
    monkeypatch.undo()
    assert await session.ask("hi") == "fine"


async def test_an_answer_that_is_awaited_says_that_the_session_was_interrupted(stack: Stack) -> None:
    """It ends the wait."""
    model = PausedModel()
    session = await stack.open(model)
    request = await session.message("one")
    await model.called.wait()
    waiting = asyncio.create_task(request.answer())
    await asyncio.sleep(0)
    await session._handle.workflow.terminate("gone")
    with pytest.raises(Interrupted, match="clew recover"):
        await waiting
    model.free.set()


async def test_the_error_of_a_session_that_has_ended_keeps_its_cause(stack: Stack) -> None:
    """So a caller can tell the answer to a message, which was refused, from the end of the session."""
    session, cause = await stack.open(), ValueError("the answer to the update")
    with pytest.raises(Closed) as caught:
        async with session._handle.explain_end():
            raise Closed("it is closed") from cause
    assert caught.value.__cause__ is cause
