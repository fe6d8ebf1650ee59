"""Reading a thread across its archive and its live session: as one, whole, and exactly as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from clew import (
    Clew,
    ContextPolicy,
    Entry,
    Session,
)
from clew.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    InvalidInput,
    NotFound,
)
from clew.local import Reply, ToolCall, temporal_server
from clew.thread import Thread
from clew_activities.archive import Archive, Store
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.thread.context.contexts import build_context, build_window
from tests.support.examples import mark_slow_except
from tests.support.hostile_input import MALFORMED
from tests.support.other_workflows import HASTY
from tests.support.rolling import QUICK_ROLLOVERS, FailingStore, list_runs, make_id, run_rolling_worker
from tests.support.scripts import reply_as_told
from tests.support.stack import Stack, get_last_message


@dataclass
class Long:
    """A session over many workflow runs.

    Attributes:
        clew: The client.
        session: The session.
        recorded: Every entry, as it was read when it was new.
        forgetting: A task for each older run; it ends when the server has deleted the run.
    """

    clew: Clew
    session: Session
    recorded: list[Entry]
    forgetting: list[asyncio.Task[None]]


async def delete_execution(clew: Clew, session_id: str, run_id: str) -> None:
    """Delete a workflow run, as the server's retention does."""
    handle = clew.temporal.get_workflow_handle(session_id, run_id=run_id)
    await clew.temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=clew.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=session_id, run_id=run_id),
        )
    )
    while True:
        try:
            await handle.describe()
        except RPCError:
            return
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
async def clew(stack: Stack) -> AsyncIterator[Clew]:
    # A server of its own: what other tests leave to be booked there keeps it from deleting anything for long.
    async with temporal_server(ui=False, dynamic_config=QUICK_ROLLOVERS) as server:
        connected = await Clew.connect(server.address)
        async with run_rolling_worker(replace(stack, clew=connected)) as clew:
            yield clew


@pytest.fixture(scope="module")
async def long(stack: Stack, clew: Clew) -> AsyncIterator[Long]:
    policy = ContextPolicy(max_input_tokens=700, reserve_output_tokens=100)
    session = await clew.open(
        make_id(),
        model=stack.add_model(reply_as_told),
        tools=["add"],
        system_prompt="Be exact.",
        context_policy=policy,
    )
    recorded: list[Entry] = []
    other = stack.add_model("other")

    async def turns(count: int, what: str = "", **options: Any) -> None:
        for turn in range(count):
            await (await session.message(f"{what} {turn} " + "more words " * 10, **options)).result()
            recorded.extend(await session.entries(from_seq=len(recorded)))

    await turns(8)
    await turns(3, "please add")
    await session.switch_context("draft", op_id="o-1")
    await turns(8, "add")
    await turns(2, "in a form", output_schema={"type": "object"}, context_policy=ContextPolicy(keep_last_turns=1))
    snapshot = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "indeed"}]
    await session.replace_context(snapshot, op_id="o-2", base_seq=len(recorded) - 9, system_prompt="Be another.")
    older = (await list_runs(clew, session.id))[1:]
    assert len(older) > 3
    await turns(6)
    await session.configure(system_prompt="Be kind.")
    await turns(6, model=other)
    await session.switch_context("default", op_id="o-3")
    await turns(8, "add")
    # Not as soon as they have ended: the server would put off what it has not booked yet, and for long.
    forgetting = [asyncio.create_task(delete_execution(clew, session.id, run_id)) for run_id in older]
    yield Long(clew, session, recorded, forgetting)
    for task in forgetting:
        task.cancel()


async def collect(found: AsyncIterator[Entry]) -> list[Entry]:
    return [entry async for entry in found]


@pytest.mark.slow
async def test_archive_and_session_are_read_as_one(long: Long) -> None:
    """The client's methods and `ReadThread` return each entry once, in order, unchanged."""
    assert (await long.session.status()).first_live_seq > 50
    assert await long.session.entries() == long.recorded
    assert await collect(long.clew.read_thread(long.session.id)) == long.recorded
    for from_seq in (1, 50, len(long.recorded) - 2, len(long.recorded)):
        assert await long.session.entries(from_seq=from_seq) == long.recorded[from_seq:]
    assert await long.session.entries(from_seq=3, limit=7) == long.recorded[3:10]


@pytest.mark.slow
async def test_filters_pages_and_the_newest(long: Long) -> None:
    """The answer is equal to a filter over the complete thread, from either end."""
    call = next(entry for entry in long.recorded if entry.payload.get("tool_calls"))
    filters: dict[str, tuple[dict[str, Any], Callable[[Entry], bool]]] = {
        "kind": ({"kind": "run"}, lambda entry: entry.kind == "run"),
        "lane": ({"context_ref": "draft"}, lambda entry: entry.lane == "draft"),
        "both": (
            {"context_ref": "draft", "kind": "ai_message"},
            lambda entry: entry.lane == "draft" and entry.kind == "ai_message",
        ),
        "call": ({"call_id": call.refs["call_id"]}, lambda entry: entry.refs.get("call_id") == call.refs["call_id"]),
        "none": ({}, lambda _entry: True),
    }

    async def check(given: dict[str, Any], meets: Callable[[Entry], bool]) -> None:
        found = [entry for entry in long.recorded if meets(entry)]
        read = long.clew.read_thread
        assert await collect(read(long.session.id, **given)) == found
        assert await long.session.entries(**given) == found
        assert await collect(read(long.session.id, newest=5, **given)) == found[-5:]
        middle = len(long.recorded) // 2
        older = [entry for entry in found if 10 <= entry.seq <= middle]
        assert await collect(read(long.session.id, from_seq=10, to_seq=middle, limit=4, **given)) == older[:4]
        assert await collect(read(long.session.id, from_seq=10, to_seq=middle, newest=4, **given)) == older[-4:]

    await asyncio.gather(*(check(given, meets) for given, meets in filters.values()))


async def test_the_transcript_reaches_into_the_archive(long: Long) -> None:
    """A lane's messages are all there; the system prompt in force leads where it is asked for."""
    for lane in ("default", "draft"):
        said: list[dict[str, Any]] = [
            {**entry.message, "seq": entry.seq}
            for entry in long.recorded
            if entry.kind == "ai_message" and entry.lane == lane
        ]
        assert await long.session.transcript(context_ref=lane) == said
        for limit in (1, 2, 7, len(said) - 1, len(said) + 1):
            assert await long.session.transcript(context_ref=lane, limit=limit) == said[-limit:]
        assert await long.session.transcript(context_ref=lane, from_seq=said[-2]["seq"], limit=3) == said[-2:]
    system = (await long.session.transcript(include_system=True, limit=2))[0]
    assert (system["role"], system["content"]) == ("system", "Be kind.")


@pytest.mark.slow
async def test_every_call_is_shown_again_as_it_was(long: Long) -> None:
    """`context(call_id=…)` gives the digest that the call's recipe has, archived or not."""
    replies = [entry for entry in long.recorded if "recipe" in entry.payload]
    assert len(replies) > 40

    async def check(reply: Entry) -> None:
        shown = await long.session.context(call_id=reply.refs["call_id"])
        assert shown.meta.digest == reply.payload["recipe"]["digest"]
        assert shown.meta.policy_hash == reply.payload["recipe"]["policy_hash"]

    await asyncio.gather(*map(check, replies[::3]))
    with pytest.raises(InvalidInput, match="no model call"):
        await long.session.context(call_id="call-0")


async def test_a_call_of_many_tools_is_shown_again_from_the_archive(stack: Stack, clew: Clew) -> None:
    """However many results name it as well."""

    def many(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}) for n in range(14)))
        return Reply("done")

    session = await clew.open(make_id(), model=stack.add_model(many), tools=["add"])
    await session.ask("add")
    replies = [entry for entry in await session.entries() if "recipe" in entry.payload]
    await session.hibernate()
    for reply in replies:
        shown = await session.context(call_id=reply.refs["call_id"])
        assert shown.meta.digest == reply.payload["recipe"]["digest"]


@pytest.mark.slow
async def test_every_context_and_window_is_projected_anywhere(long: Long) -> None:
    """At any seq of the archive and for any policy, the context is that of the whole thread; windows too."""
    whole = Thread(long.recorded)
    policy = ContextPolicy(max_input_tokens=900, reserve_output_tokens=0, keep_last_turns=2)
    asked: tuple[dict[str, Any], ...] = ({}, {"context_ref": "draft"}, {"context_policy": policy})

    async def check(seq: int) -> None:
        for given in asked:
            shown = await long.session.context(at_seq=seq, **given)
            expected = build_context(
                whole, at_seq=seq, context_ref=given.get("context_ref"), policy=given.get("context_policy")
            )
            assert shown.meta == expected.meta
            assert shown.messages == expected.messages

    await asyncio.gather(*(check(seq) for seq in range(0, len(long.recorded), 31)))
    for budget in (50, 5000):
        expected = build_window(whole, "draft", budget)
        assert (await long.session.window(budget, context_ref="draft")).messages == expected.messages


async def test_a_session_that_sleeps_is_read_from_its_archive_alone(stack: Stack, clew: Clew) -> None:
    """Hibernating or closed, and even when the server has forgotten its workflow, all of it can be read."""
    session = await clew.open(make_id(), model=stack.add_model("fine"), system_prompt="Be brief.")
    await session.ask("one")
    await session.switch_context("side", op_id="o-1")
    await session.ask("two")
    await session.replace_context([], system_prompt="Be kind.", op_id="o-2", context_ref="own")
    entries, context, said = await session.entries(), await session.context(), await session.transcript()
    await session.hibernate()
    # The server knows nothing of the second one, as after its retention.
    archive = Archive(stack.store, "default")
    head = await archive.read_head(session.id)
    assert head
    forgotten = clew.session(make_id())
    await archive.set_head(head.model_copy(update={"session_id": forgotten.id}), None)
    for asleep in (session, forgotten):
        *awake, hibernated = await asleep.entries()
        assert (awake, hibernated.payload) == (entries, {"event": "hibernated"})
        assert await asleep.transcript() == said
        assert (await asleep.transcript(include_system=True))[0]["content"] == "Be brief."
        own = await asleep.transcript(context_ref="own", include_system=True)
        assert [(message["role"], message["content"]) for message in own] == [("system", "Be kind.")]
        shown = await asleep.context()
        assert (shown.messages, shown.meta.digest) == (context.messages, context.meta.digest)
        assert (await asleep.context(call_id="call-1")).meta.digest == entries[2].payload["recipe"]["digest"]
        assert (await asleep.window(1000)).messages == context.messages[1:]
    again = await clew.open(forgotten.id)
    assert await again.ask("three") == "fine"
    assert [entry.seq for entry in await again.entries()] == list(range(len(entries) + 4))
    with pytest.raises(NotFound):
        await clew.open(make_id())


@pytest.mark.slow
async def test_reading_goes_on_while_the_session_rolls_over(stack: Stack, clew: Clew) -> None:
    """Concurrent readers get every entry once and in order during rollovers."""
    session = await clew.open(make_id(), model=stack.add_model("fine"))
    await session.ask("first")
    done = False

    async def read() -> int:
        times = 0
        while not done:
            entries = await collect(clew.read_thread(session.id))
            assert [entry.seq for entry in entries] == list(range(len(entries)))
            newest = await collect(clew.read_thread(session.id, newest=30))
            assert [entry.seq for entry in newest] == list(range(newest[0].seq, newest[-1].seq + 1))
            assert len(newest) == min(30, newest[-1].seq + 1)
            times += 1
        return times

    readers = [asyncio.create_task(read()) for _ in range(2)]
    for turn in range(16):
        await session.ask(f"turn {turn}")
    done = True
    assert min(await asyncio.gather(*readers)) > 3
    assert len(await list_runs(clew, session.id)) > 2


@pytest.mark.slow
async def test_pages_stay_under_the_limit(stack: Stack, clew: Clew) -> None:
    """However large the entries are, a page has less than 1 MB, and the pages hold everything, from either end."""
    policy = ContextPolicy(max_input_tokens=1_000_000, max_messages=1)
    session = await clew.open(make_id(), model=stack.add_model("fine"), context_policy=policy)
    for turn in range(6):
        await session.ask("long" * 55_000 + str(turn))
    entries = await session.entries()
    for newest in (None, 100):
        asked: dict[str, Any] = {"session_id": session.id} | ({"newest": newest} if newest else {})
        seqs: list[int] = []
        pages = 0
        while True:
            page: dict[str, Any] = await clew.temporal.execute_workflow(
                "ReadThread", asked, id=make_id(), task_queue=clew.task_queue, result_type=dict
            )
            pages += 1
            assert len(json.dumps(page)) < 1_000_000
            found = [row["seq"] for row in page["entries"]]
            seqs = found + seqs if newest else seqs + found
            if "next_seq" not in page:
                break
            asked["to_seq" if newest else "from_seq"] = page["next_seq"]
        assert seqs == [entry.seq for entry in entries]
        assert pages == 2


@pytest.mark.parametrize(
    "workflow",
    mark_slow_except(["ReadThread", "DeleteSession"], ["ReadThread", "ReadContext", "ForkSession", "DeleteSession"]),
)
async def test_a_malformed_input_ends_the_workflow(clew: Clew, workflow: str) -> None:
    """It fails with a word of the contract, and no workflow task fails."""

    async def failure(args: Any) -> ApplicationError:
        started = await clew.temporal.start_workflow(workflow, args=args, id=make_id(), task_queue=clew.task_queue)
        with pytest.raises(WorkflowFailureError) as ended:
            await started.result()
        assert isinstance(ended.value.cause, ApplicationError)
        return ended.value.cause

    for what, args in MALFORMED.items():
        cause = await failure(list(args))
        assert cause.type in ("invalid_input", "too_large") or what == "three arguments", what
    wrong: list[dict[str, Any]] = [
        {"session_id": "no/id"},
        {"session_id": "x", "at_seq": -1},
        {"session_id": "x", "from_seq": -1},
        {"session_id": "x", "newest": 1, "limit": 1},
    ]
    for given in wrong:
        assert (await failure([given])).type == "invalid_input", given


async def test_what_there_is_not_is_not_found(clew: Clew) -> None:
    """Neither an archive nor a workflow, or one that is no session."""
    with pytest.raises(NotFound, match="nobody"):
        await collect(clew.read_thread("nobody"))
    with pytest.raises(NotFound):
        await clew.session("nobody").entries()
    with pytest.raises(NotFound):
        await clew.session("nobody").context()
    await clew.temporal.start_workflow("Stranger", id="a-stranger", task_queue="none")
    with pytest.raises(NotFound):
        await collect(clew.read_thread("a-stranger"))
    unborn = await clew.temporal.start_workflow("AgentSession", {"config": {}}, id="unborn", task_queue="none")
    await unborn.terminate()
    with pytest.raises(NotFound):
        await collect(clew.read_thread("unborn"))


async def test_damage_is_named(stack: Stack) -> None:
    """A missing or damaged object is an error that names it; once it is restored all is read again."""
    store = Store.from_url("memory://")
    async with run_rolling_worker(stack, RolloverThresholds(events=50, updates=5), store) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for turn in range(7):
            await session.ask(f"turn {turn}")
        await session.hibernate()
        entries = await session.entries()
        segments = {path: await store.get(path) async for path in store.list("default") if path.endswith(".jsonl")}
        assert len(segments) > 1
        # Segments are named by their digests, and the last one may hold nothing but the hibernation.
        segment, data = next((path, data) for path, data in segments.items() if b"turn" in data)
        await store.put(segment, data.replace(b"turn", b"tour"))
        with pytest.raises(ArchiveDamaged, match=segment):
            await session.entries()
        await store.delete(segment)
        with pytest.raises(ArchiveDamaged, match=f"{segment} is missing"):
            await session.entries()
        await store.put(segment, data)
        assert await session.entries() == entries


class Counting(FailingStore):
    """Counts how often it was asked while it was away."""

    attempts = 0

    async def get(self, path: str) -> bytes:
        self.attempts += self.away
        return await super().get(path)


async def test_a_store_that_is_away_is_told_in_time(stack: Stack) -> None:
    """`archive_unavailable`, and not before it was tried again; when it is back, all is there."""
    store = Counting()
    async with run_rolling_worker(stack, store=store, workflows=HASTY) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("hi")
        await session.hibernate()
        store.away = True
        with pytest.raises(ArchiveUnavailable, match="it is away"):
            await session.entries()
        store.away = False
        assert store.attempts > 1
        assert len(await session.entries()) == 5


@pytest.mark.slow
async def test_the_thread_is_whole_when_the_server_has_forgotten_its_beginning(long: Long) -> None:
    """Temporal's retention deletes older runs of the workflow, and nothing is missing."""
    forgotten, _ = await asyncio.wait(long.forgetting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    if not forgotten:
        pytest.skip("the server puts the deletion off")
    assert await long.session.entries() == long.recorded
    first = next(entry for entry in long.recorded if "recipe" in entry.payload)
    shown = await long.session.context(call_id=first.refs["call_id"])
    assert shown.meta.digest == first.payload["recipe"]["digest"]
