"""A recorded thread is asked again under another agent."""

from __future__ import annotations

from typing import Any

import pytest

from clew import ContextPolicy, Session, tool
from clew.agents import Agent
from clew.errors import InvalidInput
from clew.testing import Reply, ScriptedRequest, ToolCall, evaluate
from tests.support.stack import Stack


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
