"""The configuration of a session, and the arguments that start its workflow."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.contract import (
    ConfigureInput,
    ContextPolicy,
    ExternalToolSpec,
    Limits,
    MessageInput,
    ModelOptions,
    SessionConfig,
    SessionStart,
)
from clew.errors import InvalidInput
from clew.session.transport import make_input
from clew.tools import external_tool
from clew_workflows.contract.config import ReasoningEffort, find_fairness_key, make_fairness_key, make_start_arguments
from clew_workflows.contract.limits import MAX_PROVIDER_OPTIONS_BYTES

# The overlay of configurations: what a caller sets wins, what it leaves out is the agent's.


PARTS: dict[str, st.SearchStrategy[Any]] = {
    "context_policy": st.builds(
        lambda fields: ContextPolicy(**fields),
        st.fixed_dictionaries({}, optional={"keep_last_turns": st.integers(0, 9), "max_messages": st.integers(0, 9)}),
    ),
    "model_options": st.builds(
        lambda fields: ModelOptions(**fields),
        st.fixed_dictionaries(
            {}, optional={"seed": st.none() | st.integers(0, 9), "temperature": st.none() | st.floats(0, 2)}
        ),
    ),
    "limits": st.builds(
        lambda fields: Limits(**fields),
        st.fixed_dictionaries(
            {}, optional={"max_total_tokens": st.none() | st.integers(1, 9), "max_message_bytes": st.integers(1, 9)}
        ),
    ),
    "metadata": st.dictionaries(st.sampled_from("abc"), st.text(max_size=2), max_size=3),
}
"""Fields whose own fields are overlaid one by one."""
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "pin": st.booleans(),
    "system_prompt": st.none() | st.text(max_size=3),
    "tools": st.lists(st.sampled_from(["add", "look"]), unique=True).map(tuple),
    "external_tools": st.lists(st.sampled_from(["order", "pay"]), unique=True).map(
        lambda names: tuple(ExternalToolSpec(name=name, parameters={"type": "object"}) for name in names)
    ),
    "provider_tools": st.lists(st.sampled_from(["web_search", "web_fetch"]), unique=True).map(tuple),
    "require_approval": st.lists(st.sampled_from(["add", "look"]), unique=True).map(tuple),
    "max_iterations": st.integers(1, 9),
    "on_busy": st.sampled_from(["reject", "queue"]),
    "idle_timeout_seconds": st.none() | st.integers(1, 9),
}
CONFIGS = st.fixed_dictionaries({}, optional={"model": st.sampled_from(["a:one", "a:two"]), **FIELDS, **PARTS}).map(
    lambda fields: SessionConfig.model_validate({"agent": "support", **fields})
)


@given(CONFIGS, CONFIGS)
def test_what_is_set_wins_and_what_is_not_follows(agent: SessionConfig, own: SessionConfig) -> None:
    """Field by field; null is like absent."""
    config = agent.overlay(own)
    for name in ("model", *FIELDS):
        is_set = name in own.model_fields_set and getattr(own, name) is not None
        assert getattr(config, name) == getattr(own if is_set else agent, name), name


@given(CONFIGS, CONFIGS)
def test_parts_are_overlaid_field_by_field(agent: SessionConfig, own: SessionConfig) -> None:
    """Within them an explicit null takes a value of the agent's away."""
    config = agent.overlay(own)
    for name in PARTS:
        lower, upper, result = (_read_set_fields(getattr(one, name)) for one in (agent, own, config))
        assert result == lower | upper, name


def _read_set_fields(part: Any) -> dict[str, Any]:
    if part is None or isinstance(part, dict):
        return part or {}
    return {name: getattr(part, name) for name in part.model_fields_set}


@given(CONFIGS, CONFIGS, CONFIGS)
def test_overlays_can_be_joined(agent: SessionConfig, own: SessionConfig, later: SessionConfig) -> None:
    """To overlay one change after the other is to overlay both at once."""
    one_by_one, at_once = agent.overlay(own).overlay(later), agent.overlay(own.overlay(later))
    assert one_by_one == at_once
    assert SessionConfig.model_validate_json(one_by_one.model_dump_json(exclude_unset=True)) == one_by_one


def test_a_configuration_names_a_model_or_an_agent() -> None:
    """Without either there is nothing to call."""
    assert SessionConfig(agent="support").model is None
    for fields in ({}, {"agent": None}, {"model": None}, {"agent": "not a name"}):
        with pytest.raises(ValidationError):
            SessionConfig.model_validate(fields)


@pytest.mark.parametrize("seconds", [0, 3650 * 86400 + 1, 10**300])
def test_an_idle_time_is_one_that_a_timer_can_have(seconds: int) -> None:
    """A longer timer would fail the workflow task."""
    with pytest.raises(ValidationError):
        SessionConfig(model="openai:gpt-4o", idle_timeout_seconds=seconds)


# Fairness keys: which sessions share one, and what it shows.


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"tenant": "acme", "user": "ada"}, "acme"),
        ({"user": "ada"}, "ada"),
        ({"tenant": "", "user": "ada"}, "ada"),
        ({"title": "Lamps"}, "session-1"),
        ({}, "session-1"),
    ],
)
def test_a_session_has_the_key_of_its_tenant_or_its_user_or_its_own(metadata: dict[str, str], owner: str) -> None:
    """A tenant comes before a user. Without either, each session is on its own."""
    assert find_fairness_key("session-1", metadata) == make_fairness_key(owner)


def test_an_inherited_key_is_used_where_there_is_neither_tenant_nor_user() -> None:
    """So a subagent shares the key of its parent."""
    inherited = make_fairness_key("parent")
    assert find_fairness_key("child", {}, inherited) == inherited
    assert find_fairness_key("child", {"user": "ada"}, inherited) == make_fairness_key("ada")


@pytest.mark.parametrize("owner", ["ada", "ada@example.com", "é" * 2000])
def test_a_key_is_short_and_does_not_show_its_owner(owner: str) -> None:
    """Temporal takes 64 bytes, and shows them."""
    key = make_fairness_key(owner)
    assert len(key.encode()) == 32
    assert owner not in key


# How a session's workflow is started is said once, for clients, forks, restores and recoveries.


def test_a_session_is_started_with_the_settings_that_were_given() -> None:
    """What was left open stays open, for the worker to choose; the summary names the model."""
    start = make_start_arguments("s-1", SessionConfig(model="openai:gpt-4o", on_busy="queue"))
    assert (start.workflow, start.id) == ("AgentSession", "s-1")
    assert start.argument == {"config": {"model": "openai:gpt-4o", "on_busy": "queue"}}
    assert SessionStart.model_validate(start.argument).config.model == "openai:gpt-4o"
    assert start.static_summary == "session · openai:gpt-4o"


def test_the_summary_has_the_title() -> None:
    """The title of the metadata, on one line and shortened."""
    config = SessionConfig(agent="support", metadata={"title": "A broken\ncup " + "x" * 100})
    summary = make_start_arguments("s-1", config).static_summary
    assert summary == ("session · support · A broken cup " + "x" * 100)[: len("session · support · ") + 60]


# The options of models, and the tools that a provider runs itself.


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": -0.01},
        {"top_p": 1.01},
        {"top_p": "0.5"},
        {"verbosity": "verbose"},
        {"service_tier": ""},
        {"service_tier": "Flex!"},
        {"service_tier": "x" * 41},
        {"reasoning_effort": "maximal"},
        {"provider_options": []},
        {"provider_options": {"openai": 3}},
        {"provider_options": {"openai": None}},
        {"provider_options": {"openai": {"user": "x" * 4096}}},
    ],
)
def test_an_option_out_of_its_bounds_is_refused(options: dict[str, Any]) -> None:
    """Before anything is sent: the client and the session use the same type."""
    with pytest.raises(InvalidInput):
        make_input(MessageInput, {"content": "hello", "model_options": options})


@pytest.mark.parametrize("levels", [201, 100_000])
def test_options_of_a_provider_that_are_nested_too_deep_are_refused(levels: int) -> None:
    """Also those that no parser of JSON reads."""
    nested: Any = {}
    for _ in range(levels):
        nested = {"a": nested}
    with pytest.raises(InvalidInput):
        make_input(ConfigureInput, {"model_options": {"provider_options": {"openai": nested}}})
    with pytest.raises(ValidationError):
        ModelOptions(provider_options={"openai": nested})


def test_options_within_their_bounds_are_taken() -> None:
    """All levels of reasoning, and options of providers up to the limit."""
    for effort in get_args(ReasoningEffort):
        assert ModelOptions(reasoning_effort=effort).reasoning_effort == effort
    room = MAX_PROVIDER_OPTIONS_BYTES - len('{"openai":{"user":""}}')
    options = {"openai": {"user": "x" * room}}
    sent = {"top_p": 1, "verbosity": "low", "service_tier": "flex", "provider_options": options}
    made = make_input(MessageInput, {"content": "hello", "model_options": sent}).model_options
    assert made is not None
    assert (made.top_p, made.verbosity, made.service_tier, made.provider_options) == (1, "low", "flex", options)


@pytest.mark.parametrize("tools", [["web_serch"], [""], [None], "web_search", ["web_search"] * 9])
def test_a_tool_that_no_provider_runs_is_refused(tools: Any) -> None:
    """In a configuration and in a change of it."""
    with pytest.raises(ValidationError):
        SessionConfig.model_validate_json(json.dumps({"model": "openai:gpt-4o", "provider_tools": tools}))
    with pytest.raises(InvalidInput):
        make_input(ConfigureInput, {"provider_tools": tools})


# Tools that a caller defines.


OBJECT: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
WRONG_TOOLS: dict[str, list[dict[str, Any]]] = {
    "no name": [{"parameters": OBJECT}],
    "no parameters": [{"name": "weather"}],
    "another character": [{"name": "the weather", "parameters": OBJECT}],
    "a long name": [{"name": "x" * 65, "parameters": OBJECT}],
    "a name of Clew's": [{"name": "read_result", "parameters": OBJECT}],
    "a name of an MCP tool": [{"name": "mcp__files__read", "parameters": OBJECT}],
    "twice": [{"name": "weather", "parameters": OBJECT}] * 2,
    "no object": [{"name": "weather", "parameters": {"type": "string"}}],
    "no type": [{"name": "weather", "parameters": {}}],
    "an unknown type": [{"name": "weather", "parameters": OBJECT | {"properties": {"a": {"type": "text"}}}}],
    "a schema elsewhere": [{"name": "weather", "parameters": OBJECT | {"$ref": "https://example.com"}}],
    "no time": [{"name": "weather", "parameters": OBJECT, "timeout_seconds": 0}],
    "too long a time": [{"name": "weather", "parameters": OBJECT, "timeout_seconds": 31 * 86400}],
    "an unknown field": [{"name": "weather", "parameters": OBJECT, "retries": 1}],
    "too many": [{"name": f"tool{number}", "parameters": OBJECT} for number in range(129)],
    "too large": [
        {"name": f"tool{number}", "description": "x" * 100_000, "parameters": OBJECT} for number in range(3)
    ],
}


@pytest.mark.parametrize("tools", WRONG_TOOLS.values(), ids=WRONG_TOOLS)
def test_external_tools_out_of_bounds_are_refused(tools: list[dict[str, Any]]) -> None:
    """In a start and in a change, before anything is sent; the message names the field."""
    with pytest.raises(InvalidInput, match="external_tools"):
        make_input(ConfigureInput, {"external_tools": tools})
    with pytest.raises(InvalidInput, match="external_tools"):
        make_input(SessionConfig, {"model": "openai:gpt-4o", "external_tools": tools})


def test_a_tool_object_is_an_external_tool() -> None:
    """One made by `external_tool` brings its schema and its settings; a name alone is none."""
    tool = external_tool("order", "Order it.", OBJECT, timeout_seconds=60, requires_approval="round")
    made = make_input(ConfigureInput, {"external_tools": [tool]})
    assert made.external_tools == (
        ExternalToolSpec(
            name="order", description="Order it.", parameters=OBJECT, timeout_seconds=60, requires_approval="round"
        ),
    )
    with pytest.raises(InvalidInput, match=r"external_tools\.0"):
        make_input(ConfigureInput, {"external_tools": ["order"]})
