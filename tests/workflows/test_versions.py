"""Versions of the workers: an incompatible change of the workflow's code reaches sessions while they live."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import Worker

from clew.errors import WorkerUnavailable
from clew.local import ToolCall
from clew.session.handle import SessionHandle
from clew.tools import remote_tool
from clew_workflows.protocol import RolloverThresholds
from tests.support.every_state import EVENTS, WAITING, WORKING, SessionsInEveryState
from tests.support.processes import run_worker_process
from tests.support.rolling import FailingStore, list_runs, make_id
from tests.support.scripts import make_tool_script
from tests.support.stack import Stack, make_client, run_deployment
from tests.support.versions import (
    Fleet,
    fetch_runs,
    is_drained,
    list_failed_tasks,
    list_queues,
    make_version,
    read_build_ids,
    read_texts,
    read_version,
    replay,
    run_temporal,
    set_current,
)
from tests.support.waiting import wait_until


async def test_a_session_moves_before_its_next_step(stack: Stack) -> None:
    """A session at rest stays on its version and is not woken; its next request is served by the current one."""
    fleet = Fleet(stack, make_client(stack))
    async with fleet.run("1"):
        session = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        assert await session.ask("one") == "fine"
        async with fleet.run("2"):
            assert (await session.status()).status == "idle"
            assert await read_version(fleet.clew, session.id) == "1"
            assert await session.ask("two") == "fine"
            assert await read_version(fleet.clew, session.id) == "2"
            newest, oldest = await fetch_runs(fleet.clew, session.id)
            assert (read_build_ids(oldest), read_build_ids(newest)) == ({"1"}, {"2"})
            assert not [*list_failed_tasks(oldest), *list_failed_tasks(newest)]
            assert await read_texts(session) == ["one", "fine", "two", "fine"]
            assert await replay(oldest, "1", fleet.clew) is None
            assert "nondeterminism" in str(await replay(oldest, "2", fleet.clew)).lower()


@pytest.mark.slow
async def test_a_rollback_takes_sessions_along(stack: Stack) -> None:
    """A session that has moved moves back at its next request, once the version before is current again."""
    fleet = Fleet(stack, make_client(stack))
    async with fleet.run("1"):
        session = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        async with fleet.run("2"):
            await session.ask("one")
            assert await read_version(fleet.clew, session.id) == "2"
            await set_current(fleet.clew, "1")
            await session.ask("two")
            assert await read_version(fleet.clew, session.id) == "1"
        await session.ask("three")
        runs = await fetch_runs(fleet.clew, session.id)
        assert [read_build_ids(run) for run in runs] == [{"1"}, {"2"}, {"1"}]
        assert not [failure for run in runs for failure in list_failed_tasks(run)]
        assert await read_texts(session) == ["one", "fine", "two", "fine", "three", "fine"]


async def test_the_signal_to_move_changes_nothing_on_the_current_version(stack: Stack) -> None:
    """Neither the thread nor the workflow run, nor where workers have no version."""
    fleet = Fleet(stack, make_client(stack))
    async with fleet.run("1"):
        versioned = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        for session in (versioned, await stack.open("fine")):
            await session.ask("one")
            before = await session.entries()
            await fleet.clew.temporal.get_workflow_handle(session.id).signal("move")
            assert await session.entries() == before
            assert len(await list_runs(fleet.clew, session.id)) == 1


@pytest.mark.slow
async def test_an_incompatible_version_ships_while_sessions_live(stack: Stack) -> None:
    """Sessions in every state go on: none loses anything, no workflow task fails, and the old workers can stop.

    Those at rest, and those that wait for a person, for a result from outside or for a subagent, move by the signal;
    those with a call in flight move when it has ended.
    """
    store = FailingStore()
    stack = replace(stack, store=store)
    every = SessionsInEveryState(stack, store)
    fleet = Fleet(stack, make_client(stack), (every.boss,), RolloverThresholds(events=EVENTS))
    clew, sessions = fleet.clew, every.sessions
    async with AsyncExitStack() as old_workers:
        await old_workers.enter_async_context(fleet.run("1"))
        await every.open(clew)
        async with fleet.run("2"):
            every.finish_rollover()
            pinned = f"TemporalWorkerDeploymentVersion = '{clew.task_queue}:1' AND ExecutionStatus = 'Running'"
            await run_temporal(clew, "workflow", "signal", "--query", pinned, "--name", "move", "--yes")
            for state in WAITING:
                await fleet.wait_for(sessions[state].id, "2")
            assert {await read_version(clew, sessions[state].id) for state in WORKING} == {"1"}
            sessions["new"] = await clew.open(make_id(), model=stack.add_model("fine"))
            sessions["hibernated"] = await clew.open(sessions["hibernated"].id)
            assert await every.finish() == every.answers
            for session in sessions.values():
                await fleet.wait_for(session.id, "2")
            await wait_until(lambda: is_drained(clew, "1"))
            await old_workers.aclose()
            for state in ("at rest", "hibernated", "rolling over", "new"):
                assert await sessions[state].ask("go on") == "fine"
            subagent = f"{sessions['delegating'].id}.tool00001"
            for session_id in (subagent, *(session.id for session in sessions.values())):
                for run in await fetch_runs(clew, session_id):
                    (build_id,) = read_build_ids(run)
                    assert not list_failed_tasks(run)
                    assert await replay(run, build_id, clew) is None
                    assert build_id == "2" or await replay(run, "2", clew)


async def test_the_first_version_takes_over_sessions_in_the_same_workflow_run(stack: Stack) -> None:
    """Sessions of workers without a version go on with the first one, which replays their histories."""
    fleet = Fleet(stack, make_client(stack))
    async with run_deployment(stack, fleet.clew):
        session = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
        async with fleet.run("1"):

            async def has_moved() -> bool:
                # The server tells its task queues of a new version after a moment.
                await session.ask("two")
                (run,) = await fetch_runs(fleet.clew, session.id)
                return read_build_ids(run) == {"", "1"}

            await wait_until(has_moved)
            (run,) = await fetch_runs(fleet.clew, session.id)
            assert not list_failed_tasks(run)
            assert await read_version(fleet.clew, session.id) == "1"


@pytest.mark.slow
async def test_a_session_waits_for_workers_of_its_version(stack: Stack) -> None:
    """Callers get an error that says so, and nothing is lost: what they sent is taken when such workers run again."""
    fleet = Fleet(stack, make_client(stack))
    async with fleet.run("1"):
        session = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        await session.ask("one")
    async with fleet.run("2"):
        with pytest.raises(WorkerUnavailable):
            await SessionHandle(fleet.clew.temporal, session.id, fleet.clew.task_queue).query("status", seconds=2)
        await fleet.clew.temporal.get_workflow_handle(session.id).signal("move")
        async with run_deployment(stack, fleet.clew, deployment=make_version(fleet.clew, "1")):
            await fleet.wait_for(session.id, "2")
        assert await session.ask("two") == "fine"


@pytest.mark.slow
async def test_a_session_with_a_version_calls_tools_of_workers_without_one(stack: Stack) -> None:
    """Activities of a team's own workers are not bound to the sessions' version."""
    fleet = Fleet(stack, make_client(stack))
    queue = f"tools-{fleet.clew.task_queue}"

    @activity.defn(name="describe")
    async def describe(_arguments: dict[str, Any]) -> str:
        return "described"

    remote = remote_tool(
        "describe_elsewhere", "Describes.", {"type": "object"}, task_queue=queue, activity="describe"
    )
    async with fleet.run("1", remote), Worker(stack.clew.temporal, task_queue=queue, activities=[describe]):
        model = stack.add_model(make_tool_script(ToolCall("describe_elsewhere", {})))
        session = await fleet.clew.open(make_id(), model=model, tools=["describe_elsewhere"])
        assert await session.ask("go") == "described"


@pytest.mark.slow
async def test_a_worker_process_has_the_version_of_its_environment(stack: Stack) -> None:
    """On all its task queues; its log names it."""
    fleet = Fleet(stack, make_client(stack))
    queue = fleet.clew.task_queue
    variables = {"TEMPORAL_DEPLOYMENT_NAME": queue, "TEMPORAL_WORKER_BUILD_ID": "1.0+3f"}
    async with run_worker_process(stack, queue, **variables) as worker:
        await set_current(fleet.clew, "1.0+3f")
        assert f"version {queue}.1.0+3f" in worker.log.read_text()
        session = await fleet.clew.open(make_id(), model=stack.add_model("fine"))
        assert await session.ask("one") == "fine"
        assert await read_version(fleet.clew, session.id) == "1.0+3f"
        parts = ("callers", "models", "models-scripted", "tools")
        assert await list_queues(fleet.clew, "1.0+3f") == {queue, *(f"{queue}-{part}" for part in parts)}
