from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clew import Agent, tool
from clew.tools import ToolDefinition, external_tool
from clew_activities.tools.registry import (
    AgentsUnusable,
    ToolsUnusable,
    collect_tools,
    load_agents,
    load_tools,
    make_registry,
)

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


def make_look(timeout_seconds: float = 60) -> ToolDefinition:
    @tool(timeout_seconds=timeout_seconds)
    def look() -> str:
        """Look around."""
        return "sky"

    return look


LOOK = make_look()


@tool
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def make_agent(name: str = "support", **changes: Any) -> Agent:
    fields: dict[str, Any] = {"model": "openai:gpt-4o", "tools": [LOOK]} | changes
    return Agent(name, **fields)


def test_agents_bring_their_tools() -> None:
    """Beside those of the tools modules; a tool that several agents have is one tool."""
    registry = make_registry({"add": add}, [make_agent(), make_agent("billing", tools=[LOOK, "add"])])
    assert list(registry.tools) == ["add", "look"]
    assert list(registry.agents) == ["support", "billing"]
    assert registry.agents["billing"].config.tools == ("look", "add")


def test_tools_bring_the_agents_that_they_call() -> None:
    """With the tools of these agents, and the agents of those; also a tool that no agent has."""
    inner = make_agent("inner", tools=[LOOK])
    outer = make_agent("outer", tools=[inner.as_tool("dig")])
    registry = make_registry(
        {"ask": outer.as_tool("ask")}, [make_agent("top", tools=[inner.as_tool("dig"), outer.as_tool()])]
    )
    assert sorted(registry.agents) == ["inner", "outer", "top"]
    assert sorted(registry.tools) == ["ask", "dig", "look", "outer"]
    with pytest.raises(AgentsUnusable):
        make_registry({}, [outer, make_agent("inner", tools=[])])


def test_the_same_registrations_are_one_deployment() -> None:
    """Neither the order of registration nor a value that is made twice changes a digest."""
    one = make_registry({}, [make_agent(), make_agent("billing", tools=[])])
    other = make_registry({}, [make_agent("billing", tools=[]), make_agent(tools=[make_look()])])
    assert one.deployment == other.deployment
    assert one.agents["support"] == other.agents["support"]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "openai:gpt-4.1"},
        {"system_prompt": "Be brief."},
        {"tools": []},
        {"tools": [make_look(timeout_seconds=5)]},
        {"max_iterations": 3},
        {"metadata": {"a": "b"}},
        {"version": "2"},
    ],
)
def test_every_change_is_a_new_version_and_a_new_deployment(fields: dict[str, Any]) -> None:
    """A change of a field, of a tool's settings or of the label makes a new version and a new deployment."""
    one, other = make_registry({}, [make_agent()]), make_registry({}, [make_agent(**fields)])
    assert one.agents["support"].version != other.agents["support"].version
    assert one.deployment != other.deployment


def test_a_tool_without_an_agent_is_a_part_of_the_deployment() -> None:
    """Sessions without an agent notice its new schema. The agents' versions stay."""
    one, other = make_registry({}, [make_agent()]), make_registry({"add": add}, [make_agent()])
    assert one.deployment != other.deployment
    assert one.agents == other.agents


def test_names_that_are_taken_are_refused() -> None:
    """Two agents, or two tools. The same agent, the same function and the same declaration may come twice."""
    external = {"name": "ask", "description": "Ask.", "parameters": PARAMETERS, "external": True}
    with pytest.raises(AgentsUnusable, match="two agents are called 'support'"):
        make_registry({}, [make_agent(), make_agent(max_iterations=3)])
    with pytest.raises(AgentsUnusable, match="agent 'support' has a tool 'look', and another tool has that name"):
        make_registry({"look": make_look()}, [make_agent()])
    with pytest.raises(AgentsUnusable, match="has a tool 'ask'"):
        make_registry({"ask": external_tool("ask", "Another.", PARAMETERS)}, [make_agent(tools=[external])])
    agents = [make_agent(), make_agent(), *(make_agent(name, tools=[external]) for name in ("a", "b"))]
    assert list(make_registry({"look": LOOK}, agents).tools) == ["look", "ask"]


def test_agents_whose_tools_would_have_one_name_are_refused() -> None:
    """`a.b` and `a_b` are both called `a_b`, of one agent, of two and in a module. A name tells them apart."""
    dotted, plain = make_agent("a.b"), make_agent("a_b")
    with pytest.raises(TypeError, match="agent 'top': the tool 'a_b' is listed twice"):
        make_agent("top", tools=[dotted.as_tool(), plain.as_tool()])
    two = [make_agent("one", tools=[dotted.as_tool()]), make_agent("two", tools=[plain.as_tool()])]
    with pytest.raises(AgentsUnusable, match="agent 'two' has a tool 'a_b', and another tool has that name"):
        make_registry({}, two)
    with pytest.raises(ToolsUnusable, match="two tools are called 'a_b'"):
        collect_tools([dotted.as_tool(), plain.as_tool()])
    named = make_agent("top", tools=[dotted.as_tool("a-b"), plain.as_tool()])
    assert sorted(make_registry({}, [named]).tools) == ["a-b", "a_b", "look"]


def test_names_of_tools_that_are_nowhere_are_refused() -> None:
    """A tool that an agent names is one of the worker, or of an MCP server that the worker has."""
    with pytest.raises(AgentsUnusable, match="agent 'support' has the tool 'nope'"):
        make_registry({"look": LOOK}, [make_agent(tools=["nope"])])
    with pytest.raises(AgentsUnusable, match="no MCP server is called 'files'"):
        make_registry({}, [make_agent(tools=["mcp:files/*"])], mcp_servers=["mail"])
    inner = make_agent("inner", tools=["nope"])
    with pytest.raises(AgentsUnusable, match="agent 'inner' has the tool 'nope'"):
        make_registry({}, [make_agent(tools=[inner.as_tool()])])
    named = make_agent(tools=["look", "read_result", "mcp:files/*"])
    assert "support" in make_registry({"look": LOOK}, [named], mcp_servers=["files"]).agents


def test_a_schema_that_is_not_valid_is_refused() -> None:
    """Before a session has the tool."""
    broken = {
        "name": "ask",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}},
        "external": True,
    }
    with pytest.raises(ToolsUnusable, match="'ask' are not valid JSON Schema"):
        make_registry({}, [make_agent(tools=[broken])])


def test_agents_are_found_in_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their values, whatever the variables are called. A module without any is a mistake."""
    module = types.ModuleType("some_agents")
    vars(module).update(first=make_agent(), second=make_agent("billing"), other=3)
    monkeypatch.setitem(sys.modules, "some_agents", module)
    assert [agent.name for agent in load_agents(["some_agents"])] == ["support", "billing"]
    assert load_agents([]) == []
    with pytest.raises(AgentsUnusable, match=r"'tests\.support\.stack' defines no agent"):
        load_agents(["tests.support.stack"])
    with pytest.raises(AgentsUnusable, match=r"'no\.such\.module' cannot be imported"):
        load_agents(["no.such.module"])


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes modules that can be imported for as long as a test runs."""

    def make(name: str, **contents: Any) -> str:
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return name

    return make


@tool
def one() -> None: ...


@tool
def two() -> None: ...


@tool(name="one")
def another_one() -> None: ...


def test_tools_are_found_by_their_own_names(modules: Callable[..., str]) -> None:
    """In every module named; one that two modules share is one tool."""
    first, second = modules("first_tools", uno=one, other=1), modules("second_tools", one=one, two=two, uno=one)
    assert load_tools([first, second]) == {"one": one, "two": two}
    assert load_tools([]) == {}


def test_two_tools_of_one_name_are_refused(modules: Callable[..., str]) -> None:
    """In two modules and in one alike: which of them a model gets would be chance."""
    first, second = modules("first_tools", one=one), modules("second_tools", one=another_one)
    with pytest.raises(ToolsUnusable, match="two tools are called 'one'"):
        load_tools([first, second])
    with pytest.raises(ToolsUnusable, match="two tools are called 'one'"):
        load_tools([modules("both_tools", one=one, another=another_one)])


def test_a_module_without_tools_is_refused(modules: Callable[..., str]) -> None:
    """A module without tools is refused."""
    with pytest.raises(ToolsUnusable, match="'no_tools' defines no tool"):
        load_tools([modules("no_tools", a=1, function=print)])


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("there_is_none", None, "No module named 'there_is_none'"),
        (".relative", None, "cannot be imported"),
        ("broken_tools", "def", "SyntaxError"),
        ("raising_tools", "1 / 0", "ZeroDivisionError"),
        ("needy_tools", "import what_is_not_installed", "what_is_not_installed"),
        ("script_tools", "raise SystemExit('usage: ...')", "SystemExit"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(
    name: str, source: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that cannot be imported is refused with its name and the reason."""
    monkeypatch.syspath_prepend(str(tmp_path))
    if source:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(ToolsUnusable, match=reason) as caught:
        load_tools([name])
    assert repr(name) in str(caught.value)


DECLARED = {"name": "ask", "description": "", "parameters": {"type": "object"}, "external": True}


def test_declarations_are_read_from_a_file(tmp_path: Path, modules: Callable[..., str]) -> None:
    """Beside those of modules, under the same rule for names."""
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([DECLARED]))
    assert set(load_tools([str(file), modules("first_tools", one=one)])) == {"ask", "one"}
    file.write_text(json.dumps([DECLARED, DECLARED]))
    with pytest.raises(ToolsUnusable, match="two tools are called 'ask'"):
        load_tools([str(file)])


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "{}", "[1]", "[{}]", "[" * 5000, json.dumps([DECLARED | {"parameters": {"type": "thing"}}])],
    ids=lambda text: str(text)[:10],
)
def test_a_file_that_cannot_be_used_is_named(text: str | None, tmp_path: Path) -> None:
    """It is no list of declarations, or is not there."""
    file = tmp_path / "tools.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ToolsUnusable, match=re.escape(str(file))):
        load_tools([str(file)])


def test_parameters_are_valid_json_schema(modules: Callable[..., str]) -> None:
    """Those that an author has written are compiled when the worker starts."""
    broken = external_tool("ask", "", {"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}})
    with pytest.raises(ToolsUnusable, match="parameters of tool 'ask' are not valid JSON Schema"):
        load_tools([modules("broken_schema", ask=broken)])
