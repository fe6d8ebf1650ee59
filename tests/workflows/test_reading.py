"""Reading a thread across its archive and its live session: as one, whole, and exactly as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.archive import Store
from activities.archive.store import ObjectMissing
from clew import ArchiveDamaged, ArchiveUnavailable, Clew, ContextPolicy, Entry, InvalidInput, NotFound, Session
from clew.client import TASK_QUEUE
from clew.contract import MAX_PAGE_BYTES
from deploy.local import Reply, ToolCall
from tests.conftest import World, last
from tests.contract.test_hostile_input import MALFORMED
from tests.rolling import name, rolling, runs_of
from workflows import errands
from workflows.effects import Thresholds


@dataclass
class Long:
    """A session over many runs of its workflow, and every entry as it was seen when it was new."""

    clew: Clew
    session: Session
    recorded: list[Entry]


def script(body: dict[str, Any]) -> Reply:
    newest = last(body)
    if newest["role"] == "user" and "add" in newest["content"]:
        return Reply("", tool_calls=tuple(ToolCall("add", {"a": n, "b": 1}, f"c{n}") for n in range(2)))
    return Reply("{}" if "form" in newest["content"] else f"I read {len(body['messages'])} messages · " + "words " * 20)


async def delete_execution(clew: Clew, session_id: str, run_id: str) -> None:
    """What retention does in time."""
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
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
async def clew(world: World) -> AsyncIterator[Clew]:
    async with rolling(world) as clew:
        yield clew


@pytest.fixture(scope="module")
async def long(world: World, clew: Clew) -> Long:
    policy = ContextPolicy(max_input_tokens=700, reserve_output_tokens=100)
    session = await clew.open(
        name(), model=world.model(script), tools=["add"], system_prompt="Be exact.", context_policy=policy
    )
    recorded: list[Entry] = []
    other = world.model("other")

    import time; t0=time.time()
    async def turns(count: int, what: str = "", **options: Any) -> None:
        print("T", what, time.time()-t0, flush=True)
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
    await turns(6)
    await session.configure(system_prompt="Be kind.")
    await turns(6, model=other)
    await session.switch_context("default", op_id="o-3")
    await turns(8, "add")
    # The oldest runs of the workflow are gone, as after a month.
    runs = await runs_of(clew, session.id)
    print("RUNS", len(runs), time.time()-t0)
    assert len(runs) > 3
    for run_id in runs[1:]:
        await delete_execution(clew, session.id, run_id)
    print("DONE", time.time()-t0)
    return Long(clew, session, recorded)


async def all_of(found: AsyncIterator[Entry]) -> list[Entry]:
    return [entry async for entry in found]


async def test_archive_and_session_are_read_as_one(long: Long) -> None:
    """By the client's methods and by `ReadThread`, every entry comes once, in order, as it was when it was new."""
    assert (await long.session.status()).first_live_seq > 50
    assert await long.session.entries() == long.recorded
    assert await all_of(long.clew.read_thread(long.session.id)) == long.recorded
    for from_seq in (1, 50, len(long.recorded) - 2, len(long.recorded)):
        assert await long.session.entries(from_seq=from_seq) == long.recorded[from_seq:]
    assert await long.session.entries(from_seq=3, limit=7) == long.recorded[3:10]


async def test_filters_pages_and_the_newest(long: Long) -> None:
    """What is asked for is what a filter over the whole thread gives, from either end."""
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
        assert await all_of(read(long.session.id, **given)) == found
        assert await long.session.entries(**given) == found
        assert await all_of(read(long.session.id, newest=5, **given)) == found[-5:]
        middle = len(long.recorded) // 2
        older = [entry for entry in found if 10 <= entry.seq <= middle]
        assert await all_of(read(long.session.id, from_seq=10, to_seq=middle, limit=4, **given)) == older[:4]
        assert await all_of(read(long.session.id, from_seq=10, to_seq=middle, newest=4, **given)) == older[-4:]

    await asyncio.gather(*(check(given, meets) for given, meets in filters.values()))


async def test_the_transcript_reaches_into_the_archive(long: Long) -> None:
    """A lane's messages are all there; the system prompt in force leads where it is asked for."""
    for lane in ("default", "draft"):
        said = [
            {**entry.message, "seq": entry.seq}
            for entry in long.recorded
            if entry.kind == "ai_message" and entry.lane == lane
        ]
        assert await long.session.transcript(context_ref=lane) == said
    assert await long.session.transcript(from_seq=2, limit=3) == [
        {**entry.message, "seq": entry.seq}
        for entry in [entry for entry in long.recorded[2:] if entry.kind == "ai_message"][:3]
    ]
    system = (await long.session.transcript(include_system=True, limit=2))[0]
    assert (system["role"], system["content"]) == ("system", "Be kind.")


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
