"""Forks: new sessions that begin with another one's thread, and share its archive until they are deleted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from obstore.store import MemoryStore
from temporalio.service import RPCError, RPCStatusCode

from clew import (
    Clew,
    ContextPolicy,
    Entry,
    Session,
)
from clew.errors import Closed, InvalidInput, NotFound, RequestReused, WorkerUnavailable
from clew.local import Reply
from clew_activities.archive import Head, Store, fork_session
from clew_activities.archive.backends import Bucket
from clew_activities.archive.fork_session import ForkingActivities
from clew_workflows.host import services
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.scripts import reply_as_told
from tests.support.stack import Stack
from tests.support.waiting import wait_until

T = TypeVar("T")


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    async with run_rolling_worker(stack) as clew:
        yield clew


async def gather_in_turn(work: Iterable[Awaitable[T]], at_once: int = 4) -> list[T]:
    """The results of much work, a little of it at a time."""
    room = asyncio.Semaphore(at_once)

    async def done(one: Awaitable[T]) -> T:
        async with room:
            return await one

    return await asyncio.gather(*map(done, work))


async def talk(session: Session, *texts: str) -> None:
    for text in texts:
        await (await session.message(text)).result()


async def check_fork(parent: Session, fork: Session, thread: list[Entry], at_seq: int) -> None:
    """The fork has the parent's thread as far as that goes, and its model would be shown the same."""
    mine = await fork.entries()
    assert mine[: at_seq + 1] == thread[: at_seq + 1]
    assert len(mine) == at_seq + 2
    assert (mine[-1].kind, mine[-1].payload["event"]) == ("fork", "forked_from")
    assert (mine[-1].payload["session_id"], mine[-1].payload["fork_seq"]) == (parent.id, at_seq)
    theirs, now = await parent.context(at_seq=at_seq), await fork.context()
    assert now.meta.digest == theirs.meta.digest
    assert now.meta.policy_hash == theirs.meta.policy_hash
    assert (await fork.context(at_seq=at_seq)).meta == theirs.meta


@pytest.mark.slow
async def test_a_fork_at_any_entry_sees_what_its_parent_saw(stack: Stack, clew: Clew) -> None:
    """At every seq of a thread with tool groups, lanes, operations and configurations, archived or live."""
    policy = ContextPolicy(max_input_tokens=700, reserve_output_tokens=100)
    parent = await clew.open(
        make_id(),
        model=stack.add_model(reply_as_told),
        tools=["add"],
        system_prompt="Be exact.",
        context_policy=policy,
    )
    await talk(parent, "one " + "word " * 20, "please add", "two")
    await parent.switch_context("draft", op_id="o-1")
    await talk(parent, "add again", "three")
    await parent.configure(system_prompt="Be kind.", context_policy=ContextPolicy(max_input_tokens=500))
    snapshot = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "indeed"}]
    await parent.replace_context(snapshot, op_id="o-2", system_prompt="Be another.")
    await talk(parent, *("add more words " * 10 for _ in range(6)))
    await parent.switch_context("default", op_id="o-3")
    await talk(parent, "four", "five")
    thread = await parent.entries()
    forks = await gather_in_turn(parent.fork(at_seq) for at_seq in range(0, len(thread), 2))
    await gather_in_turn(
        check_fork(parent, fork, thread, at_seq) for at_seq, fork in zip(range(0, len(thread), 2), forks, strict=True)
    )
    told = (await parent.entries())[len(thread) :]
    assert sorted(entry.payload["fork_seq"] for entry in told) == list(range(0, len(thread), 2))
    assert {entry.payload["session_id"] for entry in told} == {fork.id for fork in forks}
    assert {(entry.kind, entry.payload["event"]) for entry in told} == {("fork", "forked_to")}
    # In the middle of the tool groups too, the fork goes on.
    inside = next(entry.seq for entry in thread if entry.payload.get("tool_calls"))
    fork = await parent.fork(inside)
    assert (await fork.ask("and now?")).startswith("I read")
    ids = [call["id"] for entry in await fork.entries() for call in entry.payload.get("tool_calls", [])]
    assert len(ids) == len(set(ids))


async def test_a_fork_knows_the_operations_of_callers_alone(
    stack: Stack, clew: Clew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the session itself has applied take no place among the ids that it remembers."""
    monkeypatch.setattr(fork_session, "MAX_KNOWN_OPS", 1)
    replies = [Reply("no JSON"), Reply("{}")]
    parent = await clew.open(make_id(), model=stack.add_model(lambda _body: replies.pop(0)))
    await parent.switch_context("draft", op_id="o-1")
    await parent.ask("one", output_schema={"type": "object"})
    operations = await parent.entries(kind="ai_context_operation")
    assert [entry.payload["operation"]["type"] for entry in operations] == ["switch", "corrected"]
    fork = await parent.fork((await parent.status()).rev - 1)
    assert (await fork.switch_context("draft", op_id="o-1")).status == "duplicate"


@pytest.mark.slow
async def test_forks_go_their_own_ways(stack: Stack, clew: Clew) -> None:
    """New entries are in one session only; configuration, lane and known requests are those at the fork's seq."""
    model, other = stack.add_model("fine"), stack.add_model("other")
    parent = await clew.open(make_id(), model=model)
    await (await parent.message("one", request_id="r-1")).result()
    at_seq = (await parent.status()).rev - 1
    await parent.configure(model=other, system_prompt="Be late.")
    await parent.switch_context("late", op_id="o-1")
    await (await parent.message("two", request_id="r-2")).result()
    fork = await parent.fork(at_seq, metadata={"branch": "alt-1"})
    status = await fork.status()
    assert (status.model, status.active_context_ref, status.rev) == (model, "default", at_seq + 2)
    assert status.usage == (await clew.session(fork.id).status()).usage
    assert status.usage.model_calls == 1
    assert (await fork.entries(kind="fork"))[0].payload["metadata"] == {"branch": "alt-1"}
    assert (await parent.entries(kind="fork"))[0].payload["metadata"] == {"branch": "alt-1"}
    again = await (await fork.message("one", request_id="r-1")).result()
    assert again.last_seq == at_seq
    new = await (await fork.message("two", request_id="r-2")).result()
    assert new.last_seq > at_seq
    assert (await fork.switch_context("late", op_id="o-1")).status == "applied"
    assert "two" not in str(await fork.transcript(context_ref="late"))
    assert not [entry for entry in await fork.entries() if entry.kind == "config" and entry.seq]
    assert "Be late." in str(await parent.context())
    calls = [entry.refs["call_id"] for entry in await fork.entries() if "recipe" in entry.payload]
    assert len(calls) == len(set(calls)) == 2


@pytest.mark.slow
async def test_a_fork_of_a_fork_and_of_who_sleeps(stack: Stack, clew: Clew) -> None:
    """A parent that hibernates is not woken; it has the fork in its thread, and knows of it when it wakes."""
    parent = await clew.open(make_id(), model=stack.add_model("fine"))
    await talk(parent, *(f"turn {turn}" for turn in range(25)))
    await parent.hibernate()
    thread = await parent.entries()
    child = await parent.fork(40)
    await check_fork(parent, child, thread, 40)
    grandchild = await child.fork(30)
    await check_fork(child, grandchild, thread, 30)
    late = await parent.fork()
    whole = await parent.entries()
    assert [entry.payload["fork_seq"] for entry in whole[len(thread) :]] == [40, len(thread)]
    assert [entry.seq for entry in whole] == list(range(len(thread) + 2))
    for session in (child, grandchild, late):
        await talk(session, "and on")
    awake = await clew.open(parent.id, model=stack.add_model("ignored"))
    await talk(awake, *(f"more {turn}" for turn in range(25)))
    entries = await awake.entries()
    assert entries[: len(whole)] == whole
    assert [entry.seq for entry in entries] == list(range(len(whole) + 75))
    assert len(await child.transcript()) == len(await grandchild.transcript()) + 7


@pytest.mark.slow
async def test_many_forks_at_once_of_who_sleeps(stack: Stack, clew: Clew) -> None:
    """A hibernating session is forked many times at once; each fork is in its thread."""
    parent = await clew.open(make_id(), model=stack.add_model("fine"))
    await talk(parent, "one", "two")
    await parent.hibernate()
    thread = await parent.entries()
    forks = await asyncio.gather(*(parent.fork(at_seq) for at_seq in (1, 2, 3, 4, 5, 6, 6, 6)))
    assert all([await fork.entries() for fork in forks])
    whole = await parent.entries()
    assert whole[: len(thread)] == thread
    assert [entry.seq for entry in whole] == list(range(len(thread) + len(forks)))
    assert {entry.payload["session_id"] for entry in whole[len(thread) :]} == {fork.id for fork in forks}
    awake = await clew.open(parent.id)
    await talk(awake, "three")
    assert (await awake.entries())[: len(whole)] == whole


class ForgetfulStore(Store):
    """A store that shows the head of a session as it was before the session ended.

    Attributes:
        session_id: The session; empty: it shows all heads as they are.
        reads: How often it has shown the old head.
    """

    def __init__(self) -> None:
        super().__init__(Bucket(MemoryStore()))
        self.session_id, self.reads = "", 0

    async def get(self, path: str) -> bytes:
        data = await super().get(path)
        if not self.session_id or not path.endswith(f"/s-{self.session_id}.json"):
            return data
        self.reads += 1
        return Head.decode(data, self.session_id, path).model_copy(update={"status": "live"}).encode()


@pytest.mark.slow
async def test_a_fork_is_recorded_although_its_parents_head_seems_old(stack: Stack) -> None:
    """A store may show an old object for a moment: the parent has ended, and its head does not say so yet."""
    store = ForgetfulStore()
    async with run_rolling_worker(stack, store=store) as clew:
        parent = await clew.open(make_id(), model=stack.add_model("fine"))
        await talk(parent, "one")
        await parent.hibernate()
        thread, fork_id = await parent.entries(), make_id()
        store.session_id = parent.id
        forking = asyncio.ensure_future(parent.fork(1, fork_id))
        await wait_until(lambda: has_begun(clew, fork_id))
        seen = store.reads
        await wait_until(lambda: forking.done() or store.reads > seen + 3)
        store.session_id = ""
        fork = await forking
        (recorded,) = (await parent.entries())[len(thread) :]
        assert recorded.payload["session_id"] == fork.id


async def has_begun(clew: Clew, session_id: str) -> bool:
    """Whether a session answers. A fork is archived before its workflow starts."""
    with suppress(Closed, NotFound):
        return bool((await clew.session(session_id).status()).rev)
    return False


@pytest.mark.slow
async def test_the_same_fork_is_made_once(stack: Stack, clew: Clew) -> None:
    """Asked for again it is answered again; under an id that is another session's it is refused."""
    parent = await clew.open(make_id(), model=stack.add_model("fine"))
    await talk(parent, "one", "two")
    fork_id = make_id()
    first, *others = await asyncio.gather(parent.fork(3, fork_id), parent.fork(3, fork_id), parent.fork(3, fork_id))
    assert {first.id, *(other.id for other in others)} == {fork_id}
    assert (await first.status()).rev == 5
    assert len(await parent.entries(kind="fork")) == 1
    with pytest.raises(RequestReused, match="not this fork"):
        await parent.fork(2, fork_id)
    with pytest.raises(RequestReused, match="not this fork"):
        await parent.fork(3, parent.id)
    with pytest.raises(InvalidInput, match="ends with entry"):
        await parent.fork(1000)
    with pytest.raises(InvalidInput):
        await parent.fork(-1)
    with pytest.raises(NotFound):
        await clew.session("nobody").fork(0)


@pytest.mark.slow
async def test_a_session_is_forked_while_it_runs(stack: Stack, clew: Clew) -> None:
    """The run stays with the parent; the fork is idle and answers."""
    free = asyncio.Event()

    async def slow(body: dict[str, Any]) -> Reply:
        if "slow" in str(body["messages"][-1]["content"]):
            await free.wait()
        return Reply("done")

    parent = await clew.open(make_id(), model=stack.add_model(slow))
    await talk(parent, "quick")
    request = await parent.message("slow")
    fork = await parent.fork()
    status = await fork.status()
    assert (status.status, status.request_id, status.usage.model_calls) == ("idle", None, 1)
    assert await fork.ask("quick again") == "done"
    free.set()
    assert await request.answer() == "done"
    assert [entry.kind for entry in await parent.entries(from_seq=4)] == ["ai_message", "fork", "ai_message", "run"]


async def open_family(stack: Stack, clew: Clew) -> list[Session]:
    """Open a parent with an archive of its own, its fork, and the fork's fork, each with messages of its own."""
    parent = await clew.open(make_id(), model=stack.add_model("fine"))
    await talk(parent, *(f"turn {turn}" for turn in range(15)))
    child = await parent.fork(30)
    await talk(child, *(f"child {turn}" for turn in range(15)))
    grandchild = await child.fork(50)
    await talk(grandchild, "grandchild")
    return [parent, child, grandchild]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.slow
async def test_sessions_are_deleted_in_any_order(stack: Stack, order: tuple[int, ...]) -> None:
    """A deleted session is gone at once, other sessions keep their segments, and the last deletion leaves nothing."""
    store = Store.from_url("memory://")
    async with run_rolling_worker(stack, store=store) as clew:
        members = await open_family(stack, clew)
        threads = {session.id: await session.entries() for session in members}
        deleted = 0
        for place in order:
            gone = members[place]
            deleted += (await clew.delete(gone.id)).deleted_segments
            del threads[gone.id]
            with pytest.raises(NotFound):
                await gone.entries()
            with pytest.raises(NotFound):
                await clew.delete(gone.id)
            for session_id, thread in threads.items():
                # Only the entry about a fork may have come since.
                assert await clew.session(session_id).entries() == thread
        assert deleted > 2
        assert [path async for path in store.list("")] == []


async def fail(*_arguments: Any) -> None:
    raise RPCError("the server is busy", RPCStatusCode.RESOURCE_EXHAUSTED, b"")


async def hang(*_arguments: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "ends"), [("_start_fork", fail), ("_record_in_parent", fail), ("_record_in_parent", hang)]
)
async def test_a_fork_that_has_not_ended_in_time_is_finished_by_a_repetition(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, step: str, ends: Callable[..., Awaitable[None]]
) -> None:
    """The error says that it may be made, and names the session; repeating the call with it makes no second fork."""
    parent = await stack.open()
    await talk(parent, "one")
    thread = await parent.entries()
    with monkeypatch.context() as failing:
        failing.setattr(services, "CHANGE_TIMEOUT", timedelta(seconds=2))
        failing.setattr(ForkingActivities, step, ends)
        with pytest.raises(WorkerUnavailable) as caught:
            await parent.fork()
    named = re.search(rf"{parent.id}-[0-9a-f]+", str(caught.value))
    assert named
    # Without the entry's seq, too: the parent may have an entry about the fork by now.
    for _ in range(2):
        fork = await parent.fork(session_id=named[0])
        assert fork.id == named[0]
        await check_fork(parent, fork, thread, thread[-1].seq)
    assert [entry.payload["session_id"] for entry in await parent.entries(kind="fork")] == [named[0]]


async def test_a_session_that_was_never_archived_is_forked_and_deleted(stack: Stack) -> None:
    """A fork of a young session is whole, whichever is deleted first."""
    store = Store.from_url("memory://")
    async with run_rolling_worker(stack, store=store) as clew:
        for parent_first in (True, False):
            parent = await clew.open(make_id(), model=stack.add_model("fine"))
            await talk(parent, "one")
            fork = await parent.fork()
            await clew.delete((parent if parent_first else fork).id)
            left = fork if parent_first else parent
            await talk(left, "two")
            assert len(await left.transcript()) == 4
            await clew.delete(left.id)
            assert [path async for path in store.list("")] == []
