"""Following sessions on a real server: every entry once and in order, whatever happens to the session."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from clew import Clew, ContextPolicy
from clew.errors import Busy, Interrupted, NotFound, UnknownRequest
from clew.local import Reply, ToolCall
from clew.session.events import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    ResultRequired,
    Retrying,
    SessionEvent,
    StatusChanged,
    TextAdded,
    ToolFinished,
    ToolStarted,
    follow,
    history_polls,
)
from clew.session.events.history_polls import Execution
from clew.session.handle import SessionHandle
from tests.support.holding import hold_intake, note_answers, run_holding_worker, wait_for_answers
from tests.support.processes import open_session_on, run_worker_process
from tests.support.proxy import run_proxy
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, get_last_message
from tests.support.viewers import Viewer, check_events, collect, list_seqs, list_types, select, watch
from tests.support.waiting import PATIENCE_SECONDS

WORDS = " ".join(f"word{number}" for number in range(12))


async def test_a_request_is_followed_to_its_outcome(stack: Stack) -> None:
    """Every entry once and in order; the texts between them grow and are the reply."""
    session = await stack.open(lambda _body: Reply(WORDS, tokens_per_second=10))
    request = await session.message("go")
    events = await collect(request)
    assert list_seqs(events) == [entry.seq for entry in await session.entries() if entry.kind != "config"]
    assert len(select(events, TextAdded)) > 3
    check_events(events)
    assert await collect(session.request(request.request_id)) != [], "also after its end"
    with pytest.raises(UnknownRequest):
        await collect(session.request("no-such-request"))


@pytest.mark.parametrize("is_sender", [True, False])
async def test_a_message_is_followed_that_the_session_decides_about_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, is_sender: bool
) -> None:
    """By its sender and by others: the events begin once it is decided, or the refusal is raised."""
    async with run_holding_worker(stack) as (clew, store):
        session = await clew.open(make_id(), model=stack.add_model(lambda _body: Reply(WORDS, tokens_per_second=40)))
        with note_answers(monkeypatch) as answers:
            async with hold_intake(session, store):
                sent = [await session.message(text, request_id=text) for text in ("first", "second")]
                readers = sent if is_sender else [session.request(request.request_id) for request in sent]
                viewers = [Viewer(reader.events()) for reader in readers]
                await wait_for_answers(answers, "entries", 2)
        followed, refused = viewers
        async with asyncio.timeout(PATIENCE_SECONDS):
            await followed.task
        assert list_seqs(followed.events)[-1] == (await sent[0].result()).last_seq
        assert select(followed.events, TextAdded)
        check_events(followed.events)
        with pytest.raises(Busy if is_sender else UnknownRequest):
            await refused.task


async def test_a_tool_call_starts_and_finishes(stack: Stack) -> None:
    """Between the entry that calls the tool and the entry with its result."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("add", {"a": 2, "b": 3}),))
        return Reply("five")

    session = await stack.open(script, tools=["add"])
    events = await collect(await session.message("go"))
    shown = [event.seq if isinstance(event, EntryCommitted) else event.type for event in events]
    assert [item for item in shown if item != "status"] == [1, 2, "tool_started", "tool_finished", 3, "text", 4, 5]


async def test_calls_that_wait_are_announced(stack: Stack) -> None:
    """Those that wait for approval and those that wait for their result, also to a viewer that begins later."""
    calls = (ToolCall("order_guarded", {"item": "tea"}, "a"), ToolCall("guarded", {}, "b"))

    def script(body: dict[str, Any]) -> Reply:
        return Reply(tool_calls=calls) if get_last_message(body)["role"] == "user" else Reply("done")

    session = await stack.open(script, tools=["order_guarded", "guarded"])
    async with watch(session) as viewer:
        request = await session.message("go")
        await viewer.wait_for(lambda events: len(select(events, ApprovalRequired)) == 2)
        async with watch(session, None) as later:
            await later.wait_for(lambda events: len(select(events, ApprovalRequired)) == 2)
        await session.approve("tool00001")
        await session.deny("tool00002", reason="no")
        await viewer.wait_for(lambda events: select(events, ResultRequired))
        await session.submit_tool_result("tool00001", "sent")
        assert await request.answer() == "done"
        await viewer.wait_for_seq((await request.result()).last_seq)
    (waiting,) = select(viewer.events, ResultRequired)
    assert (waiting.tool_call_id, waiting.arguments) == ("tool00001", {"item": "tea"})
    assert select(viewer.events, ToolStarted) == [], "one was denied, the other ran outside"
    finished = {event.tool_call_id: event.is_error for event in select(viewer.events, ToolFinished)}
    assert finished == {"tool00001": False, "tool00002": True}
    check_events(viewer.events)


@pytest.mark.slow
async def test_a_viewer_goes_on_over_rollovers(stack: Stack) -> None:
    """Entries that are archived meanwhile come once; later viewers begin at any seq."""
    async with run_rolling_worker(stack) as clew:
        model = stack.add_model(lambda body: Reply(f"re: {len(body['messages'])} "))
        session = await clew.open(make_id(), model=model, context_policy=ContextPolicy(max_input_tokens=2300))
        async with watch(session) as viewer:
            for number in range(40):
                await session.ask(f"message {number}")
            last_seq = (await session.status()).rev - 1
            await viewer.wait_for_seq(last_seq)
        assert len(await list_runs(clew, session.id)) > 1
        assert list_seqs(viewer.events) == list(range(last_seq + 1))
        check_events(viewer.events)
        assert (await session.status()).first_live_seq > 2
        for from_seq in (0, 1, last_seq // 2, last_seq):
            async with watch(session, from_seq) as later:
                await later.wait_for_seq(last_seq)
            assert list_seqs(later.events) == list(range(from_seq, last_seq + 1))


async def test_a_viewer_goes_on_over_hibernation(stack: Stack) -> None:
    """It says `hibernated` and waits; the entries of the session that was opened again follow."""
    session = await stack.open("fine")
    async with watch(session) as viewer:
        await session.ask("one")
        await session.hibernate()
        await viewer.wait_for(lambda events: "hibernated" in [e.status for e in select(events, StatusChanged)])
        async with watch(session, None) as later:
            await later.wait_for(lambda events: list_types(events) == ["status"])
            assert select(later.events, StatusChanged)[0].status == "hibernated"
            again = await stack.clew.open(session.id)
            await again.ask("two")
            last_seq = (await again.status()).rev - 1
            await viewer.wait_for_seq(last_seq)
            await later.wait_for_seq(last_seq)
    assert list_seqs(viewer.events) == list(range(last_seq + 1))
    check_events(viewer.events)


async def test_a_viewer_ends_with_the_session(stack: Stack) -> None:
    """After `closed`; a viewer that begins later gets the same. A session that never was is not found."""
    session = await stack.open("fine")
    async with watch(session) as viewer:
        await session.ask("one")
        await session.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await viewer.task
    async with watch(session) as later:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await later.task
    assert list_seqs(later.events) == list_seqs(viewer.events) == list(range(len(await session.entries())))
    assert select(viewer.events, StatusChanged)[-1].status == "closed"
    with pytest.raises(NotFound):
        await anext(stack.clew.session(make_id()).follow())


async def test_a_terminated_session_fails_its_viewers(stack: Stack) -> None:
    """The error says how it is repaired."""
    session = await stack.open("fine")
    async with watch(session) as viewer:
        await session.ask("one")
        await viewer.wait_for_seq(3)
        await stack.clew.temporal.get_workflow_handle(session.id).terminate()
        with pytest.raises(Interrupted, match="clew recover"):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await viewer.task


async def test_a_retry_says_why(stack: Stack) -> None:
    """Which attempt follows, why, and when; then the reply."""
    replies = [Reply("one two three four", tokens_per_second=8, disconnect_after=3), Reply("at last")]
    session = await stack.open(lambda _body: replies.pop(0))
    events = await collect(await session.message("go"))
    (retrying,) = select(events, Retrying)
    assert (retrying.call_id, retrying.attempt, retrying.error) == ("call-1", 2, "truncated_stream")
    assert retrying.next_at is not None
    assert [event.attempt for event in select(events, Restarted)] == [2]
    check_events(events)
    assert select(events, TextAdded)[-1].attempt == 2


@pytest.mark.slow
async def test_a_worker_dies_in_the_middle_of_a_reply(stack: Stack) -> None:
    """The viewer reads that another attempt follows, that the reply starts over, and the new reply."""
    called = asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        if called.is_set():
            return Reply("at last " * 4, tokens_per_second=8)
        called.set()
        return Reply("this is never complete " * 100, tokens_per_second=10)

    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue) as first:
        session = await open_session_on(stack, queue, script)
        async with watch(session) as viewer:
            request = await session.message("go")
            await viewer.wait_for(lambda events: len(select(events, TextAdded)) > 1)
            await first.kill()
            async with run_worker_process(stack, queue):
                outcome = await request.result()
                await viewer.wait_for_seq(outcome.last_seq)
    assert [event.error for event in select(viewer.events, Retrying)] == ["worker_lost"]
    assert [event.attempt for event in select(viewer.events, Restarted)] == [2]
    check_events(viewer.events)


async def test_sixty_viewers_add_no_event(stack: Stack) -> None:
    """The history is about as long as with one; those that leave disturb no other, and a cancel is quick."""
    session = await stack.open(lambda _body: Reply(WORDS * 10, tokens_per_second=20))

    async def count_events() -> int:
        return (await stack.clew.temporal.get_workflow_handle(session.id).describe()).history_length

    before = await count_events()
    async with watch(session) as viewer:
        request = await session.message("watched by one")
        await viewer.wait_for(lambda events: select(events, TextAdded))
        await session.cancel()
        await request.result()
    with_one = await count_events() - before

    viewers = [Viewer(session.follow(0)) for _ in range(60)]
    before = await count_events()
    request = await session.message("watched")
    for viewer in viewers:
        await viewer.wait_for(lambda events: select(events, TextAdded))
    for viewer in viewers[:30]:
        await viewer.stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await session.cancel()
        outcome = await request.result()
    for viewer in viewers[30:]:
        await viewer.wait_for_seq(outcome.last_seq)
        await viewer.stop()
        assert list_seqs(viewer.events) == list(range(outcome.last_seq + 1))
    # The server may hand the last results over in one workflow task or in several.
    assert await count_events() - before <= with_one + 10


async def test_a_slow_viewer_gets_fewer_events_and_every_entry(stack: Stack) -> None:
    """What grows meanwhile is one event when it comes back."""
    session = await stack.open(lambda _body: Reply(WORDS, tokens_per_second=10))
    async with watch(session) as quick:
        slow = session.follow(0)
        events = [await anext(slow)]
        request = await session.message("go")
        outcome = await request.result()
        await quick.wait_for_seq(outcome.last_seq)
        while list_seqs(events)[-1:] != [outcome.last_seq]:
            events.append(await anext(slow))
        await slow.aclose()
    assert list_seqs(events) == list_seqs(quick.events)
    assert len(select(events, TextAdded)) == 1 < len(select(quick.events, TextAdded))
    check_events(events)


def has_more_texts(count: int, events: list[SessionEvent]) -> bool:
    """Whether there are more texts than a number of them."""
    return len(select(events, TextAdded)) > count


async def test_viewers_wait_for_a_server_that_starts(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know its namespace for a moment."""
    session = await stack.open(lambda _body: Reply("fine"))
    refusals = [RPCError("Namespace default is not found.", RPCStatusCode.NOT_FOUND, b"")]

    async def describe(handle: SessionHandle, run_id: str = "") -> Execution | None:
        if refusals:
            raise refusals.pop()
        return await history_polls.describe(handle, run_id)

    monkeypatch.setattr(follow, "describe", describe)
    async with watch(session) as viewer:
        await viewer.wait_for_seq(0)
    assert not refusals


@pytest.mark.slow
async def test_viewers_survive_lost_connections(stack: Stack) -> None:
    """The long poll is reset again and again; no entry is missing and none comes twice."""
    async with run_proxy(stack.server.address) as proxy:
        session = await stack.open(lambda _body: Reply(WORDS, tokens_per_second=10))
        remote = Clew(await Client.connect(proxy.address, data_converter=stack.clew.temporal.data_converter))
        last_seq = -1
        async with watch(remote.session(session.id)) as viewer:
            for number in range(3):
                request = await session.message(f"message {number}")
                texts = len(select(viewer.events, TextAdded))
                await viewer.wait_for(partial(has_more_texts, texts))
                proxy.reset_connections()
                last_seq = (await request.result()).last_seq
                proxy.reset_connections()
                await viewer.wait_for_seq(last_seq)
    assert list_seqs(viewer.events) == list(range(last_seq + 1))
    check_events(viewer.events)
