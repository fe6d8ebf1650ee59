"""Subagents on a real server: a tool call starts a session of an agent, and its answer is the result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from clew import Agent, Clew, RequestFailed, Session
from clew.errors import NotFound
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from clew.session import WaitingCall
from clew.tools import external_tool
from clew_workflows.protocol import RolloverThresholds
from tests.support.hostile_input import is_harm
from tests.support.processes import run_worker_process
from tests.support.rolling import list_runs, make_id
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import wait_until


def delegate(*tasks: str, tool: str = "helper") -> Script:
    """A model that gives tasks to a subagent, and then repeats their results."""

    def script(body: dict[str, Any]) -> Reply:
        if not any(message["role"] == "tool" for message in body["messages"]):
            calls = [ToolCall(tool, {"task": task}, f"c{number}") for number, task in enumerate(tasks)]
            return Reply(tool_calls=calls)
        return Reply(" | ".join(m["content"] for m in body["messages"] if m["role"] == "tool"))

    return script


def echo(body: dict[str, Any]) -> Reply:
    return Reply(f"done: {get_last_message(body)['content']}")


async def read_results(session: Session) -> list[Mapping[str, Any]]:
    """Read the payloads of the tool results."""
    return [entry.payload for entry in await session.entries() if entry.payload.get("role") == "tool"]


@pytest.mark.slow
async def test_two_subagents_work_in_parallel(stack: Stack) -> None:
    """Each has a session of its own, whose thread can be read when it is over; the Temporal UI shows its parent."""
    clew = make_client(stack)
    both = asyncio.Barrier(2)

    async def work(body: dict[str, Any]) -> Reply:
        await both.wait()
        return echo(body)

    helper = Agent("helper", model=stack.add_model(work))
    boss = Agent("boss", model=stack.add_model(delegate("one", "two")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss", metadata={"customer": "4711"})
        request = await session.message("go")
        assert await request.answer() == "done: one | done: two"
        results = await read_results(session)
        for number, result in enumerate(sorted(results, key=lambda result: result["tool_call_id"]), 1):
            child_id = f"{session.id}.tool{number:05d}"
            assert (result["subagent"]["session_id"], result["subagent"]["agent"]) == (child_id, "helper")
            assert result["subagent"]["usage"]["model_calls"] == 1
            described = await clew.temporal.get_workflow_handle(child_id).describe()
            assert described.parent_id == session.id
            child = clew.session(child_id)
            await wait_until_closed(clew, child_id)
            assert [entry.kind for entry in await child.entries()] == [
                "config", "ai_message", "ai_message", "run", "session",
            ]  # fmt: skip
        status = await session.status()
        assert status.subagents == []
        assert status.subagent_usage is not None
        assert (status.usage.model_calls, status.subagent_usage.model_calls) == (2, 2)
        outcome = await request.result()
        assert outcome.subagent_usage == status.subagent_usage
        await assert_no_harm(clew, session.id)


async def test_subagents_have_subagents(stack: Stack) -> None:
    """At depth 2. What the newest one answers comes up through both."""
    clew = make_client(stack)
    worker = Agent("worker", model=stack.add_model(echo))
    helper = Agent("helper", model=stack.add_model(delegate("deep", tool="worker")), tools=[worker.as_tool()])
    boss = Agent("boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool(timeout_seconds=60)])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        assert await session.ask("go") == "done: deep"
        status = await session.status()
        assert status.subagent_usage is not None
        assert status.subagent_usage.model_calls == 3
        await wait_until_closed(clew, f"{session.id}.tool00001")
        await assert_no_harm(clew, session.id)


@pytest.mark.parametrize(
    "state",
    [pytest.param("done", marks=pytest.mark.slow), "working", pytest.param("reopened", marks=pytest.mark.slow)],
)
async def test_a_session_is_deleted_with_the_tree_below_it(stack: Stack, state: str) -> None:
    """Ended subagents, those at work, those that were opened again. A fork stays, and has its own subagents."""
    clew = make_client(stack)
    worker = Agent("worker", model=stack.add_model(echo))
    called, gate = asyncio.Event(), asyncio.Event()

    async def pass_on(body: dict[str, Any]) -> Reply:
        if state == "working" and "new" in str(body["messages"][-1]["content"]):
            called.set()
            await gate.wait()
        return delegate("deep", tool="worker")(body)  # type: ignore[return-value]

    def lead(body: dict[str, Any]) -> Reply:
        last = get_last_message(body)
        if last["role"] == "user":
            return Reply(tool_calls=[ToolCall("helper", {"task": last["content"]}, "c1")])
        return Reply(last["content"])

    helper = Agent("helper", model=stack.add_model(pass_on), tools=[worker.as_tool()])
    boss = Agent("boss", model=stack.add_model(lead), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        assert await session.ask("go") == "done: deep"
        fork = await session.fork()
        assert await fork.ask("and on") == "done: deep"
        other = await clew.open(f"{session.id}.tool00009", agent="worker")
        await other.ask("mine")
        tree = [session.id, f"{session.id}.tool00001", f"{session.id}.tool00001.tool00001"]
        if state == "working":
            await session.message("a new one")
            await called.wait()
            tree.append(f"{session.id}.tool00002")
        if state == "reopened":
            await wait_until_closed(clew, tree[1])
            reopened = await clew.open(tree[1], agent="helper")
            await reopened.ask("once more")
        receipt = await clew.delete(session.id)
        gate.set()
        assert receipt.deleted_subagents == len(tree) - 1
        for session_id in tree:
            with pytest.raises(NotFound):
                await clew.session(session_id).entries()
        assert await other.ask("yours") == "done: yours"
        assert await fork.ask("and on") == "done: deep"
        left = await clew.delete(fork.id)
        assert left.deleted_subagents == 4
        await clew.delete(other.id)
        names = [path async for path in stack.store.list("") if session.id in path]
        assert names == []


@pytest.mark.parametrize("ending", ["cancel", "close", "terminate"])
async def test_a_cancel_reaches_the_whole_tree(stack: Stack, ending: str) -> None:
    """Also a close. If the first session is gone, its subagent finishes its task and closes."""
    clew = make_client(stack)
    called, gate = asyncio.Event(), asyncio.Event()

    async def hang(_body: dict[str, Any]) -> Reply:
        called.set()
        await gate.wait()
        return Reply("late")

    worker = Agent("worker", model=stack.add_model(hang))
    helper = Agent("helper", model=stack.add_model(delegate("deep", tool="worker")), tools=[worker.as_tool()])
    boss = Agent("boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        request = await session.message("go")
        await called.wait()
        child_id, grandchild_id = f"{session.id}.tool00001", f"{session.id}.tool00001.tool00001"
        match ending:
            case "cancel":
                await session.cancel(reason="changed my mind")
                assert (await request.result()).status == "cancelled"
            case "close":
                await session.close()
            case _:
                await session._handle.workflow.terminate()
                gate.set()
        await wait_until_closed(clew, grandchild_id)
        await wait_until_closed(clew, child_id)
        gate.set()
        if ending == "terminate":
            return
        (ended,) = await clew.session(grandchild_id).entries(kind="run")
        assert ended.payload["termination_reason"] == "cancelled"
        if ending == "cancel":
            (result,) = await read_results(session)
            assert result["content"].startswith("[not answered")
            assert result["subagent"]["session_id"] == child_id

            async def has_no_children() -> bool:
                return not (await session.status()).subagents

            await wait_until(has_no_children)
        await assert_no_harm(clew, session.id)


async def test_what_waits_in_a_subagent_is_listed_by_its_parent(stack: Stack) -> None:
    """An approval and an external call, with the session that they wait in."""
    clew = make_client(stack)
    calls = (ToolCall("guarded", {}), ToolCall("outside", {}, "c2"))

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=calls)
        return Reply(" ".join(m["content"] for m in body["messages"] if m["role"] == "tool"))

    empty = {"type": "object", "properties": {}}
    tools = [
        external_tool("guarded", "", empty, requires_approval=True),
        external_tool("outside", "", empty),
    ]
    helper = Agent("helper", model=stack.add_model(script), tools=tools)
    boss = Agent("boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        request = await session.message("go")
        child = clew.session(f"{session.id}.tool00001")
        waiting, _ = await wait_for_calls(session, 2)
        assert (waiting.session_id, waiting.needs, waiting.call.name) == (child.id, "approval", "guarded")
        assert (await session.status()).subagents[0].session_id == child.id
        parent = (await child.status()).parent
        assert parent is not None
        assert (parent.session_id, parent.depth) == (session.id, 1)
        await clew.session(waiting.session_id).approve(waiting.call.tool_call_id)

        async def wait_only_for_results() -> bool:
            return {waiting.needs for waiting in await session.list_waiting_calls()} == {"result"}

        await wait_until(wait_only_for_results)
        for waiting in await wait_for_calls(session, 2):
            await clew.session(waiting.session_id).submit_tool_result(waiting.call.tool_call_id, waiting.call.name)
        assert sorted((await request.answer()).split()) == ["guarded", "outside"]
        await assert_no_harm(clew, session.id)


async def wait_for_calls(session: Session, count: int) -> Sequence[WaitingCall]:
    """Wait until so many calls wait in the tree of a session, and return them."""

    async def are_waiting() -> bool:
        return len(await session.list_waiting_calls()) == count

    await wait_until(are_waiting)
    return await session.list_waiting_calls()


async def test_a_subagent_has_the_time_that_its_parent_has_left(stack: Stack) -> None:
    """In whole seconds. After that its parent is told that it timed out."""
    clew = make_client(stack)
    helper = Agent("helper", model=stack.add_model(lambda _body: Reply(hangs=True)))
    boss = Agent("boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool()], request_timeout_seconds=2)
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        await (await session.message("go")).result()
        (result,) = await read_results(session)
        assert result["content"] == "error: the subagent failed: timeout"
        assert result["problem"].startswith("no answer within 1 seconds")
        await assert_no_harm(clew, session.id)


async def test_a_budget_is_shared_with_subagents(stack: Stack) -> None:
    """A subagent that uses up what is left fails, and its parent with it."""
    clew = make_client(stack)
    helper = Agent("helper", model=stack.add_model(lambda _body: Reply(tool_calls=(ToolCall("nothing", {}),))))
    boss = Agent(
        "boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool()], limits={"max_total_tokens": 200}
    )
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        with pytest.raises(RequestFailed, match="tokens of the 200"):
            await session.ask("go")
        (result,) = await read_results(session)
        assert result["content"].startswith("error: the subagent failed: token_limit")
        await assert_no_harm(clew, session.id)


async def test_what_cannot_start_is_an_error_that_the_model_reads(stack: Stack) -> None:
    """A session of the child's id that exists, and a session that is terminated while it works."""
    clew = make_client(stack)
    called = asyncio.Event()

    def hang(_body: dict[str, Any]) -> Reply:
        called.set()
        return Reply(hangs=True)

    helper = Agent("helper", model=stack.add_model(hang))
    boss = Agent("boss", model=stack.add_model(delegate("one", "two")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session_id = make_id()
        await clew.open(f"{session_id}.tool00001", model=stack.add_model("fine"))
        session = await clew.open(session_id, agent="boss")
        request = await session.message("go")
        await called.wait()
        await clew.session(f"{session_id}.tool00002")._handle.workflow.terminate()
        assert "the subagent gave no result" in await request.answer()
        problems = sorted(result["problem"] for result in await read_results(session))
        assert "there is a session" in problems[1]
        assert "its session has ended" in problems[0]
        history = await session._handle.workflow.fetch_history()
        assert not [event for event in history.events if is_harm(event)]


async def test_a_subagent_whose_model_workers_do_not_have_is_an_error_that_the_model_reads(stack: Stack) -> None:
    """With the word of the problem."""
    clew = make_client(stack)
    helper = Agent("helper", model="nowhere:model")
    boss = Agent("boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss):
        session = await clew.open(make_id(), agent="boss")
        assert (await session.ask("go")).startswith("error: the subagent failed: unknown_model")
        await assert_no_harm(clew, session.id)


async def test_a_task_of_a_caller_is_refused(stack: Stack) -> None:
    """Only the session that starts a subagent sets it."""
    task = {
        "content": "x", "request_id": "task", "session_id": "s-1", "tool_call_id": "tool00001", "depth": 1,
        "timeout_seconds": 9, "max_result_bytes": 999,
    }  # fmt: skip
    start = {"config": {"model": stack.add_model("fine")}, "task": task}
    handle = await stack.clew.temporal.start_workflow(
        "AgentSession", start, id=make_id(), task_queue=stack.clew.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert "only the session that starts" in str(failed.value.cause)


async def test_a_parent_rolls_over_while_its_subagent_works(stack: Stack) -> None:
    """The next workflow run gets the result."""
    clew = make_client(stack)
    called, gate = asyncio.Event(), asyncio.Event()

    async def wait(body: dict[str, Any]) -> Reply:
        called.set()
        await gate.wait()
        return echo(body)

    helper = Agent("helper", model=stack.add_model(wait))
    boss = Agent("boss", model=stack.add_model(delegate("one")), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss, thresholds=RolloverThresholds(updates=5)):
        session = await clew.open(make_id(), agent="boss")
        request = await session.message("go", request_id="r")
        await called.wait()
        for number in range(9):
            await session.steer(f"hurry up {number}")

        async def has_rolled_over() -> bool:
            return len(await list_runs(clew, session.id)) > 1

        await wait_until(has_rolled_over)
        assert [child.status for child in (await session.status()).subagents] == ["working"]
        gate.set()
        assert (await request.result()).status == "completed"
        (result,) = await read_results(session)
        assert result["content"] == "done: one"
        await assert_no_harm(clew, session.id)


@pytest.mark.slow
async def test_a_worker_dies_while_a_subagent_works(stack: Stack) -> None:
    """Another worker goes on with both sessions."""
    clew = make_client(stack)
    called, gate = asyncio.Event(), asyncio.Event()

    async def wait(body: dict[str, Any]) -> Reply:
        called.set()
        await gate.wait()
        return echo(body)

    settings = {"SUBAGENTS_BOSS": stack.add_model(delegate("one")), "SUBAGENTS_HELPER": stack.add_model(wait)}
    settings["CLEW_AGENTS"] = "tests.support.crew"
    async with run_worker_process(stack, clew.task_queue, **settings) as first:
        session = await clew.open(make_id(), agent="boss")
        request = await session.message("go")
        await called.wait()
        await first.kill()
        gate.set()
        async with run_worker_process(stack, clew.task_queue, **settings):
            assert await request.answer() == "done: one"
            (result,) = await read_results(session)
            assert result["subagent"]["usage"]["model_calls"] == 1


async def assert_no_harm(clew: Clew, session_id: str) -> None:
    """Assert that no workflow task of the session and of its subagents has failed."""
    for run_id in await list_runs(clew, session_id):
        history = await clew.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        assert not [event for event in history.events if is_harm(event)]
        for event in history.events:
            if event.HasField("start_child_workflow_execution_initiated_event_attributes"):
                await assert_no_harm(
                    clew, event.start_child_workflow_execution_initiated_event_attributes.workflow_id
                )


async def wait_until_closed(clew: Clew, session_id: str) -> None:
    async def is_closed() -> bool:
        described = await clew.temporal.get_workflow_handle(session_id).describe()
        return described.close_time is not None

    await wait_until(is_closed)
