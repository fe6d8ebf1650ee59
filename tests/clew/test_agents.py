"""Agents as values: what they set, and what is refused where they are defined."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from clew import Agent, ContextPolicy, tool
from clew.contract import Limits, ModelOptions, SessionConfig
from clew.tools import external_tool


@tool
def look() -> str:
    """Look around."""
    return "sky"


ASK_A_PERSON: dict[str, Any] = {
    "name": "ask_a_person",
    "description": "Ask a person.",
    "parameters": {"type": "object", "properties": {}},
    "external": True,
}


def make_agent(name: str = "support", **changes: Any) -> Agent:
    fields: dict[str, Any] = {"model": "openai:gpt-4o"} | changes
    return Agent(name, **fields)


def test_an_agent_is_a_tool() -> None:
    """Named after the agent. Its argument is the task."""
    tool_of_agent = make_agent("research.web").as_tool()
    assert (tool_of_agent.name, list(tool_of_agent.spec["parameters"]["properties"])) == ("research_web", ["task"])
    other = make_agent().as_tool("ask", "Asks.", timeout_seconds=9, requires_approval=True)
    assert (other.spec["description"], other.timeout_seconds, other.requires_approval) == ("Asks.", 9, True)
    with pytest.raises(TypeError):
        make_agent().as_tool("no name")


def test_an_agent_sets_the_fields_that_it_names() -> None:
    """All others are left to the session."""
    agent = make_agent(
        tools=[look, ASK_A_PERSON, "mcp:github/search"],
        require_approval=["look"],
        context_policy=ContextPolicy(keep_last_turns=2),
        provider_tools=["web_search"],
        model_options={"temperature": 0},
        limits=Limits(max_total_tokens=5),
        metadata={"team": "support"},
        version="1.2",
    )
    assert agent.config == SessionConfig(
        model="openai:gpt-4o",
        tools=("look", "ask_a_person", "mcp:github/search"),
        require_approval=("look",),
        provider_tools=("web_search",),
        context_policy=ContextPolicy(keep_last_turns=2),
        model_options=ModelOptions(temperature=0),
        limits=Limits(max_total_tokens=5),
        metadata={"team": "support"},
    )
    assert agent.config.model_fields_set == {
        *("model", "tools", "require_approval", "provider_tools"),
        *("context_policy", "model_options", "limits", "metadata"),
    }
    assert make_agent().config.model_fields_set == {"model"}


def test_an_agent_brings_its_tools() -> None:
    """Those that it has as objects or as JSON, not those that it only names."""
    person = external_tool("call_back", "Call back.", ASK_A_PERSON["parameters"])
    agent = make_agent(tools=(look, ASK_A_PERSON, person, "add"))
    assert [tool.name for tool in agent.own_tools] == ["look", "ask_a_person", "call_back"]


def test_approvals_may_name_all_tools_of_a_server() -> None:
    """Of one that the agent has tools of."""
    for tools in (["mcp:github/*"], ["mcp:github/search"]):
        assert make_agent(tools=tools, require_approval=["mcp:github/*"]).config.require_approval == ("mcp:github/*",)
    with pytest.raises(TypeError, match="mcp:tracker"):
        make_agent(tools=["mcp:github/search"], require_approval=["mcp:tracker/*"])


def test_an_agent_is_a_value() -> None:
    """It is equal to one with the same fields, and a changed one is checked like a new one."""
    agent = make_agent(tools=[look])
    assert agent == make_agent(tools=(look,))
    assert agent != make_agent(tools=[look], version="2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        agent.name = "other"  # type: ignore[misc]
    other = dataclasses.replace(agent, model="openai:gpt-4.1")
    assert other.config.model == "openai:gpt-4.1"
    with pytest.raises(TypeError):
        dataclasses.replace(agent, max_iterations=0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "a name"}, "not 'a name'"),
        ({"name": ""}, "not ''"),
        ({"name": 3}, "not 3"),
        ({"model": "gpt-4o"}, "model: "),
        ({"model": None}, "model"),
        ({"tools": [look, look]}, "'look' is listed twice"),
        ({"tools": ["look", look]}, "'look' is listed twice"),
        ({"tools": [len]}, "is not a tool"),
        ({"tools": [""]}, "is not a tool"),
        ({"tools": "look"}, "tools is a list"),
        ({"tools": [{"name": "x"}]}, "either 'external': true, or a 'task_queue'"),
        ({"tools": [look], "require_approval": ["lok"]}, "'lok', which is not a tool of the agent"),
        ({"require_approval": "look"}, "require_approval is a list"),
        ({"max_iterations": 0}, "max_iterations: "),
        ({"on_busy": "wait"}, "on_busy: "),
        ({"model_options": {"heat": 1}}, "model_options.heat: "),
        ({"model_options": {"provider_options": {"openai": 3}}}, "model_options.provider_options.openai: "),
        ({"model_options": {"provider_options": {"openai": {"a": "x" * 5000}}}}, "over 4096 bytes"),
        ({"provider_tools": "web_search"}, "provider_tools is a list"),
        ({"provider_tools": ["search"]}, "provider_tools.0: "),
        ({"limits": 3}, "limits: "),
        ({"metadata": {"a": object()}}, "is not JSON"),
        ({"context_policy": ContextPolicy(reserve_output_tokens=9000)}, "max_input_tokens"),
        ({"system_prompt": "x" * 70_000}, "a system prompt has at most 65536 bytes"),
        ({"version": ""}, "version has 1 to 200 characters"),
        ({"version": 3}, "version has 1 to 200 characters"),
    ],
)
def test_a_mistake_is_named_where_the_agent_is_defined(fields: dict[str, Any], reason: str) -> None:
    """With a TypeError when the module is imported, before any session starts."""
    with pytest.raises(TypeError) as refused:
        make_agent(**fields)
    assert reason in str(refused.value)
