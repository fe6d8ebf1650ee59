"""Recorded sessions are replayed before a deployment, and asked again under another agent."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Worker

from clew import ContextPolicy, Session, tool
from clew.agents import Agent
from clew.errors import InvalidInput, NewerVersion
from clew.testing import ReplayFailed, Reply, ScriptedRequest, ToolCall, evaluate, replay
from clew_audit.json_lines import FileDamaged
from tests.support.corpus import NEXT, read_corpus
from tests.support.stack import Stack
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def histories() -> list[WorkflowHistory]:
    """The recorded workflow runs."""
    return read_corpus(NEXT).histories


@workflow.defn(name="Billing", sandboxed=False)
class Billing:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(milliseconds=1))


@workflow.defn(name="Billing", sandboxed=False)
class ChangedBilling:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity("charge", start_to_close_timeout=timedelta(seconds=1))


@pytest.mark.slow
async def test_recorded_sessions_are_replayed(tmp_path: Path, histories: list[WorkflowHistory]) -> None:
    """Histories and files of them, in the format of `temporal workflow show`."""
    file = tmp_path / "session.json"
    file.write_text(histories[1].to_json())
    assert await replay(histories[0], file, str(file)) == 3


@pytest.mark.slow
async def test_a_folder_stands_for_its_files(tmp_path: Path, histories: list[WorkflowHistory]) -> None:
    """Saved histories of several workflow runs, and below it; a file without histories is named."""
    corpus = read_corpus(NEXT)
    (tmp_path / "more").mkdir()
    (tmp_path / "rollover.jsonl").write_bytes(corpus.files["histories/rollover-1.jsonl"])
    (tmp_path / "more" / "session.json").write_text(histories[1].to_json())
    runs = sum(history.workflow_id.startswith("rollover-1") for history in corpus.histories)
    assert await replay(tmp_path) == runs + 1
    (tmp_path / "more" / "notes.txt").write_text("nothing")
    with pytest.raises(FileDamaged, match=r"notes\.txt holds no event history"):
        await replay(tmp_path)
    (tmp_path / "more" / "notes.txt").write_text('{"clew": "histories", "version": 2}\n')
    with pytest.raises(NewerVersion, match="the file is of version 2"):
        await replay(tmp_path)


async def test_a_history_of_other_code_is_named(tmp_path: Path, histories: list[WorkflowHistory]) -> None:
    """The error has the workflow's id and the difference; the others are replayed, too."""
    events = json.loads(histories[0].to_json())
    scheduled = [event for event in events["events"] if "activityTaskScheduledEventAttributes" in event]
    scheduled[0]["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "other"
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(events))
    with pytest.raises(ReplayFailed, match=r"1 workflow runs cannot be replayed:\nchanged .*other") as caught:
        await replay(file, histories[1])
    assert len(caught.value.problems) == 1


async def test_a_teams_own_workflows_are_replayed_from_the_server(stack: Stack) -> None:
    """`query` lists them; a change of their commands is found."""
    queue = uuid.uuid4().hex
    client = stack.clew.temporal
    async with Worker(client, task_queue=queue, workflows=[Billing]):
        await client.execute_workflow(Billing.run, id=queue, task_queue=queue)
    query = f"WorkflowId = '{queue}'"

    async def listed() -> bool:
        return [run async for run in client.list_workflows(query)] != []

    await wait_until(listed)
    assert await replay(client=stack.clew, query=query, workflows=[Billing]) == 1
    with pytest.raises(ReplayFailed, match=queue):
        await replay(client=client, query=query, workflows=[ChangedBilling])


async def test_nothing_to_replay_is_an_error(tmp_path: Path) -> None:
    """A check of nothing must not pass."""
    with pytest.raises(ValueError, match="no workflow run to replay"):
        await replay()
    with pytest.raises(ValueError, match="a query needs a client"):
        await replay(query="WorkflowType = 'AgentSession'")
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    with pytest.raises(FileDamaged, match=r"notes.txt holds no event history"):
        await replay(file)


@tool
def search(query: str) -> str:
    """Search for a text."""
    return f"found {query}"


def old(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "user" and "add" in last["content"]:
        return Reply(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])
    return Reply("The sum is 3." if last["role"] == "tool" else "Hello.")


@pytest.fixture(scope="module")
async def recorded(stack: Stack) -> Session:
    """Record two requests: one is answered, the other calls a tool."""
    session = await stack.open(old, tools=["add"], system_prompt="old")
    await session.ask("hi")
    await session.ask("add 1 and 2")
    return session


async def test_each_call_is_compared_with_the_recorded_reply(recorded: Session) -> None:
    """Text and tool calls are compared call by call; later calls see the recorded replies and results."""
    seen: list[ScriptedRequest] = []

    def new(request: ScriptedRequest) -> Reply:
        seen.append(request)
        if request.role == "user" and "add" in request.text:
            return Reply(tool_calls=[ToolCall("add", {"a": 2, "b": 1})])
        return Reply("The sum is 3." if request.role == "tool" else "Good day.")

    agent = Agent("support", model="openai:gpt-4o", system_prompt="new", tools=["add", search])
    evaluation = await evaluate(recorded, agent, script=new, calls_at_once=1)
    assert [(turn.same_text, turn.same_calls) for turn in evaluation.turns] == [
        (False, True),
        (True, False),
        (True, True),
    ]
    assert {request.system_prompt for request in seen} == {"new"}
    assert [[message["content"] for message in request.messages[1:]] for request in seen] == [
        ["hi"],
        ["hi", "Hello.", "add 1 and 2"],
        ["hi", "Hello.", "add 1 and 2", "", "3"],
    ]
    assert {"add", "search"} <= set(seen[0].tools)
    assert evaluation.turns[1].recorded.tool_calls == (("add", {"a": 1, "b": 2}),)
    assert evaluation.usage.model_calls == evaluation.recorded_usage.model_calls == 3
    assert evaluation.usage.input_tokens > 0
    document = evaluation.as_dict()
    assert (document["same_text"], document["same_calls"], document["problems"]) == (2, 2, 0)


async def test_a_call_that_fails_is_reported(recorded: Session) -> None:
    """The other calls are compared; the usage counts only those that were answered."""
    agent = Agent("support", model="openai:gpt-4o")
    evaluation = await evaluate(await recorded.entries(), agent, script=["Hello.", Reply.error(400, "no"), "3"])
    assert [turn.same_text for turn in evaluation.turns] == [True, False, False]
    assert "bad_request: no" in (evaluation.turns[1].problem or "")
    assert evaluation.recorded_usage.model_calls == 2


async def test_a_policy_that_does_not_hold_a_context_is_a_problem_of_its_turn(recorded: Session) -> None:
    """An agent with a small window is evaluated, too."""
    agent = Agent(
        "small",
        model="openai:gpt-4o",
        system_prompt="long " * 200,
        context_policy=ContextPolicy(max_input_tokens=100, reserve_output_tokens=1),
    )
    evaluation = await evaluate(recorded, agent, script="fine")
    assert {(turn.problem or "").partition(":")[0] for turn in evaluation.turns} == {"context_overflow"}


async def test_an_unknown_tool_is_refused(recorded: Session) -> None:
    """The agent's tools must be known: from the thread, the agent or `tools`."""
    agent = Agent("support", model="openai:gpt-4o", tools=["search"])
    with pytest.raises(InvalidInput, match="has a tool 'search', which is not defined here"):
        await evaluate(recorded, agent, script="fine")
    assert (await evaluate(recorded, agent, script="fine", tools=[search])).turns[0].reply
