"""Which version serves a session: ramps, the first version, callers on others, and versions without workers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from clew import Agent, Clew, Session
from clew.contract import READ_WORKFLOW, ReadThreadInput
from clew.errors import WorkerUnavailable
from clew.local import Reply, ToolCall
from clew.session.handle import SessionHandle
from clew_activities.archive import Archive
from clew_audit.recovery import recover
from clew_workflows.protocol import RolloverThresholds
from tests.support.every_state import EVENTS, SessionsInEveryState
from tests.support.rolling import FailingStore, SlowModel, list_runs, make_id
from tests.support.scripts import make_tool_script
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.versions import (
    Fleet,
    fetch_runs,
    list_failed_tasks,
    read_build_ids,
    read_texts,
    read_version,
    run_temporal,
    set_current,
    set_ramping,
)
from tests.support.waiting import wait_until

WITHOUT_VERSION = (
    "TemporalWorkerDeploymentVersion IS NULL AND WorkflowType = 'AgentSession' AND ExecutionStatus = 'Running'"
)


async def signal_move(clew: Clew, query: str) -> None:
    """Send the signal as the page says, to the sessions of this test alone."""
    query = f"TaskQueue = '{clew.task_queue}' AND {query}"
    await run_temporal(clew, "workflow", "signal", "--name", "move", "--yes", "--query", query)


async def check_runs(clew: Clew, *session_ids: str) -> None:
    """Check that no workflow task of the sessions has failed."""
    for session_id in session_ids:
        for run in await fetch_runs(clew, session_id):
            assert not list_failed_tasks(run)


async def has_failed_task(clew: Clew, session: Session) -> bool:
    """Whether a workflow task of the newest workflow run has failed."""
    newest, *_ = await fetch_runs(clew, session.id)
    return bool(list_failed_tasks(newest))


@pytest.mark.slow
async def test_a_ramp_takes_a_share_of_the_sessions_and_keeps_to_it(stack: Stack) -> None:
    """The id of a session decides: it moves no more while the ramp stays. The end of the ramp takes all back."""
    fleet = Fleet(stack, make_client(stack))
    clew, model = fleet.clew, stack.add_model("fine")

    async def ask_all(*sessions: Session) -> list[str]:
        assert await asyncio.gather(*(session.ask("go") for session in sessions)) == ["fine"] * len(sessions)
        return [await read_version(clew, session.id) for session in sessions]

    async with fleet.run("1"), fleet.run("2", current=False):
        old = [await clew.open(make_id(), model=model) for _ in range(12)]
        assert set(await ask_all(*old)) == {"1"}
        await set_ramping(clew, "2", 50)
        new = [await clew.open(make_id(), model=model) for _ in range(12)]
        versions = await ask_all(*old, *new)
        assert set(versions[:12]) == set(versions[12:]) == {"1", "2"}
        assert await ask_all(*old, *new) == versions
        moved = [len(await list_runs(clew, session.id)) for session in (*old, *new)]
        assert moved == [1 if version == "1" else 2 for version in versions[:12]] + [1] * 12
        await set_ramping(clew, "", 0)
        assert set(await ask_all(*old, *new)) == {"1"}
        await check_runs(clew, *(session.id for session in (*old, *new)))


@pytest.mark.slow
async def test_a_subagent_is_ramped_by_its_own_id(stack: Stack) -> None:
    """It and its parent may be on different versions; the result arrives."""
    helper = Agent("helper", model=stack.add_model("helped"))
    boss = Agent(
        "boss",
        model=stack.add_model(make_tool_script(ToolCall("helper", {"task": "help"}))),
        tools=[helper.as_tool()],
    )
    fleet = Fleet(stack, make_client(stack), (boss,))
    clew = fleet.clew
    pairs: set[tuple[str, str]] = set()
    async with fleet.run("1"), fleet.run("2", current=False):
        await set_ramping(clew, "2", 50)
        while not pairs & {("1", "2"), ("2", "1")}:
            session = await clew.open(make_id(), agent="boss")
            child_id = f"{session.id}.tool00001"
            assert await session.ask("go") == "helped"
            pairs.add((await read_version(clew, session.id), await read_version(clew, child_id)))
            await check_runs(clew, session.id, child_id)


@pytest.mark.slow
async def test_the_first_version_takes_over_sessions_in_every_state(stack: Stack) -> None:
    """Sessions of workers without a version, at rest or at work, are on the version once they were signalled."""
    store = FailingStore()
    stack = replace(stack, store=store)
    every = SessionsInEveryState(stack, store)
    fleet = Fleet(stack, make_client(stack), (every.boss,), RolloverThresholds(events=EVENTS))
    clew, sessions_ = fleet.clew, every.sessions
    async with AsyncExitStack() as old_workers:
        await old_workers.enter_async_context(fleet.run(""))
        await every.open(clew)
        async with fleet.run("1"):
            every.finish_rollover()
            await signal_move(clew, WITHOUT_VERSION)
            for state, session in sessions_.items():
                if state != "hibernated":
                    await fleet.wait_for(session.id, "1")
            assert await every.finish() == every.answers
            await old_workers.aclose()
            sessions_["hibernated"] = await clew.open(sessions_["hibernated"].id)
            for state in ("at rest", "hibernated", "rolling over"):
                assert await sessions_[state].ask("go on") == "fine"
            await check_runs(clew, *(session.id for session in sessions_.values()))


@pytest.mark.slow
async def test_a_session_that_slept_through_the_first_version_needs_it_once_more(stack: Stack) -> None:
    """It is bound to none yet, so the second version gets its history; with the first one current it goes on."""
    fleet = Fleet(stack, make_client(stack))
    clew = fleet.clew
    async with run_deployment(stack, clew):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
    async with fleet.run("1"), fleet.run("2"):
        asking = asyncio.ensure_future(session.ask("two"))
        await wait_until(lambda: has_failed_task(clew, session))
        await set_current(clew, "1")
        assert await asking == "fine"
        await set_current(clew, "2")
        assert await session.ask("three") == "fine"
        assert [read_build_ids(run) for run in await fetch_runs(clew, session.id)] == [{"2"}, {"", "1"}]
        assert await read_texts(session) == ["one", "fine", "two", "fine", "three", "fine"]


@pytest.mark.slow
async def test_a_session_calls_a_subagent_while_another_version_is_current(stack: Stack) -> None:
    """Its model call began on the version before; the subagent starts, both move, and the answer arrives."""
    asked = SlowModel(
        lambda body: (
            Reply(get_last_message(body)["content"])
            if get_last_message(body)["role"] == "tool"
            else Reply(tool_calls=[ToolCall("helper", {"task": "help"})])
        )
    )
    helper = Agent("helper", model=stack.add_model("helped"))
    boss = Agent("boss", model=stack.add_model(asked), tools=[helper.as_tool()])
    fleet = Fleet(stack, make_client(stack), (boss,))
    clew = fleet.clew
    async with fleet.run("1"):
        session = await clew.open(make_id(), agent="boss")
        asking = asyncio.ensure_future(session.ask("go"))
        await asked.wait_for_call()
        async with fleet.run("2"):
            asked.release(2)
            assert await asking == "helped"
            for session_id in (session.id, f"{session.id}.tool00001"):
                await fleet.wait_for(session_id, "2")
                await check_runs(clew, session_id)


@pytest.mark.slow
async def test_services_of_the_current_version_serve_sessions_of_another(stack: Stack) -> None:
    """Reading wakes no session. A fork begins on the current version, and its parent moves as it records it."""
    fleet = Fleet(stack, make_client(stack), thresholds=RolloverThresholds(events=50))
    clew = fleet.clew
    async with fleet.run("1"):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        while len(await list_runs(clew, session.id)) == 1:
            await session.ask("one")
        token = await session.checkpoint()
        async with fleet.run("2"):
            thread = await session.entries()
            assert (await session.context(at_seq=1)).messages
            assert session.id in [one.session_id async for one in clew.sessions()]
            assert await read_version(clew, session.id) == "1"
            fork = await session.fork(thread[-1].seq)
            restored = await clew.restore(token)
            for one in (session, fork, restored):
                await fleet.wait_for(one.id, "2")
                assert await one.ask("two") == "fine"
                await check_runs(clew, one.id)


@pytest.mark.slow
async def test_services_say_that_a_session_has_no_workers(stack: Stack) -> None:
    """The service's failure names the session's workers, not the archive."""
    fleet = Fleet(stack, make_client(stack))
    async with fleet.run("1"):
        session = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
    async with fleet.run("2"):
        handle = SessionHandle(fleet.clew.temporal, session.id, fleet.clew.task_queue)
        with pytest.raises(WorkerUnavailable, match=f"no worker answers for session '{session.id}'"):
            await handle.run_service(READ_WORKFLOW, ReadThreadInput(session_id=session.id))


@pytest.mark.slow
async def test_sessions_that_a_rollback_has_left_move_with_workers_of_their_version(stack: Stack) -> None:
    """One worker of the version that was given up is enough, and the signal."""
    fleet = Fleet(stack, make_client(stack))
    clew = fleet.clew
    async with fleet.run("1"):
        async with fleet.run("2"):
            session = await clew.open(make_id(), model=stack.add_model("fine"))
            await session.ask("one")
            await set_current(clew, "1")
        async with fleet.run("2", current=False):
            version = f"TemporalWorkerDeploymentVersion = '{clew.task_queue}:2' AND ExecutionStatus = 'Running'"
            await signal_move(clew, version)
            await fleet.wait_for(session.id, "1")
        assert await session.ask("two") == "fine"
        await check_runs(clew, session.id)


@pytest.mark.slow
async def test_sessions_of_a_lost_version_go_on_with_one_that_replays_them(stack: Stack) -> None:
    """The override counts for one workflow task; after it the session is on that version, and moves as all do."""
    fleet = Fleet(stack, make_client(stack))
    clew = fleet.clew
    async with fleet.run("1.1"):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
    async with fleet.run("1"):
        await run_temporal(
            clew, "workflow", "update-options", "--yes", "--query", f"WorkflowId = '{session.id}'",
            "--versioning-override-behavior", "one_time",
            "--versioning-override-deployment-name", clew.task_queue, "--versioning-override-build-id", "1",
        )  # fmt: skip
        assert await session.ask("two") == "fine"
        assert await read_version(clew, session.id) == "1"
        async with fleet.run("2"):
            assert await session.ask("three") == "fine"
            assert await read_version(clew, session.id) == "2"
        await check_runs(clew, session.id)


@pytest.mark.slow
async def test_sessions_of_a_lost_version_are_recovered(stack: Stack) -> None:
    """Where no version that runs can replay them: with the code that made their histories, nothing is lost."""
    fleet = Fleet(stack, make_client(stack))
    clew, archive = fleet.clew, Archive(stack.store, "default")
    async with fleet.run("1"):
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
    async with fleet.run("2"):
        await clew.temporal.get_workflow_handle(session.id).terminate()
        await recover(clew.temporal, archive, session.id, task_queue=clew.task_queue)
        session = await clew.open(session.id)
        assert await session.ask("two") == "fine"
        assert await read_version(clew, session.id) == "2"
        assert await read_texts(session) == ["one", "fine", "two", "fine"]
