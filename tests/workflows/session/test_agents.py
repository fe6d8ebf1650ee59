"""Decisions about agents: what a session has of its own, what is the agent's, and when it is resolved anew."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import ClearToolResults, ContextPolicy, Limits, ModelOptions, SessionConfig
from clew.contract.payloads import ConfigPayload
from clew.errors import InvalidTokenBudget, TooLarge, UnknownTool
from clew_workflows.protocol import DescribeModel, Failure, Outdated, Prepare, Prepared, ResolvedTool
from clew_workflows.session import carried as carrying
from clew_workflows.session import configuration, ui, views
from clew_workflows.session.advance import Session
from tests.support.session_harness import UNKNOWN, SessionHarness, carry_over, make_agent, make_tool

CLEARING = ContextPolicy(clear_tool_results=ClearToolResults(keep=1))
NO_AGENT = Failure(type="unknown_agent", message="no agent")
FIRST = make_agent(version="v-1", system_prompt="one", tools=("add",), max_iterations=5)
SECOND = make_agent(version="v-2", system_prompt="two", tools=("add", "look"), max_iterations=6)


def begin(agent: Any = FIRST, **config: Any) -> SessionHarness:
    """Begin a session of an agent that a worker has resolved."""
    session = SessionHarness(prepare=False, agent="support", **config)
    session.answer_preparation(agent=agent, tools=agent.config.tools)
    return session


def list_changes(session: SessionHarness) -> list[list[str] | None]:
    return [entry.payload.get("changes") for entry in session.thread.filter_by_kind("config")]


def list_tools(session: SessionHarness) -> list[str]:
    """List the tools that the next context has, with their descriptions."""
    return [f"{tool.spec['name']}{tool.spec['description']}" for tool in session.state.settings.tools or ()]


def test_a_worker_resolves_the_agent_before_anything_is_committed() -> None:
    """The session has nothing of its own but the name; the entry has all that is in force, and the version."""
    session = SessionHarness(prepare=False, agent="support", encoding="heuristic")
    assert session.state.preparation == Prepare(encoding="heuristic", agent="support", clears=None)
    session.answer_preparation(agent=FIRST, tools=("add",))
    config = session.thread[0].payload
    assert config["agent"] == {"name": "support", "version": "v-1"}
    assert (config["model"], config["system_prompt"], config["max_iterations"]) == ("openai:gpt-4o", "one", 5)
    assert config["own"] == {"agent": "support", "encoding": "heuristic"}
    session.ask()
    assert (session.call.model, session.call.deployment) == ("openai:gpt-4o", "d-1")


def test_an_entry_has_of_the_callers_policy_what_they_have_set() -> None:
    """The fields that they have not set follow the agent's policy, also in a fork."""
    session = begin(context_policy=ContextPolicy(max_messages=3))
    assert session.thread[0].payload["own"]["context_policy"] == {"max_messages": 3}


def test_the_worker_is_told_what_is_not_the_agents() -> None:
    """Its model, its tools, and whether its policy clears results, in so far as callers have set them."""
    session = begin(model="openai:gpt-4", tools=(), context_policy=ContextPolicy(clear_tool_results=None))
    assert session.state.preparation == Prepare(
        encoding="heuristic", agent="support", model="openai:gpt-4", tools=(), clears=False
    )
    session = SessionHarness(prepare=False, agent="support", context_policy=CLEARING)
    assert session.state.preparation == Prepare(encoding="heuristic", agent="support", clears=True)


def test_only_the_first_call_of_a_run_names_the_deployment() -> None:
    """The others have the tools that the run began with."""
    session = begin()
    session.ask()
    assert session.call.deployment == "d-1"
    session.reply("", "add")
    session.answer_calls("4")
    assert session.call.deployment is None
    session.reply("done")
    session.ask()
    assert session.call.deployment == "d-1"


def test_an_outdated_session_is_prepared_anew_once_a_run() -> None:
    """The call that follows has the same id, the new settings, and goes to any worker."""
    session = begin()
    request_id = session.ask()
    before = session.call
    session.take_event(Outdated(deployment="d-2"))
    assert session.effect == Prepare(encoding="heuristic", agent="support", clears=None)
    assert (session.state.phase, session.state.describing) == ("preparing", False)
    session.answer_preparation(agent=SECOND, tools=("add", "look"), deployment="d-2")
    assert (session.call.call_id, session.call.iteration, session.call.deployment) == (before.call_id, 1, None)
    assert session.state.run
    assert session.state.run.request.max_iterations == 6
    assert session.entry_names == ["config", "user", "config"]
    assert list_changes(session) == [None, ["agent", "system_prompt", "tools", "max_iterations"]]
    session.reply("fine")
    assert session.find_outcome(request_id)["iterations"] == 1
    session.ask()
    assert session.call.deployment == "d-2"


def test_a_preparation_that_changes_nothing_commits_nothing() -> None:
    """Another agent or another tool of the deployment has changed."""
    session = begin()
    session.ask()
    session.take_event(Outdated(deployment="d-2"))
    session.answer_preparation(agent=FIRST, tools=("add",), deployment="d-2")
    assert session.entry_names == ["config", "user"]
    assert session.state.settings.deployment == "d-2"


def test_a_new_version_may_have_another_model() -> None:
    """The request that waits is served by the new one, under its policy, without a question more."""
    session = begin(table=True)
    session.ask()
    session.take_event(Outdated(deployment="d-2"))
    session.answer_preparation(agent=make_agent(version="v-2", model="openai:gpt-4.1"), tools=(), deployment="d-2")
    assert session.call.model == "openai:gpt-4.1"
    assert session.state.settings.policy == session.make_profile("openai:gpt-4.1").policy
    assert not [effect for effect in session.effects if isinstance(effect, DescribeModel)]


@pytest.mark.parametrize("problem", [NO_AGENT, UNKNOWN])
def test_a_problem_fails_the_request_and_the_next_one_asks_again(problem: Failure) -> None:
    """A session whose agent is gone keeps the version that it has."""
    session = begin()
    failed = session.ask()
    session.take_event(Outdated(deployment="d-2"))
    session.answer_preparation(problem, agent=None if problem is NO_AGENT else FIRST, tools=("add",))
    assert session.find_ending(failed) == ("failed", problem.type)
    assert (session.state.settings.agent, list_tools(session)) == (FIRST, ["add"])
    served = session.ask()
    assert isinstance(session.effect, Prepare)
    session.answer_preparation(agent=SECOND, tools=("add", "look"), deployment="d-2")
    # It was prepared for this run.
    assert session.call.deployment is None
    session.reply("fine")
    assert session.find_ending(served) == ("completed", "final_answer")


def test_an_mcp_server_that_is_down_leaves_a_prepared_session_as_it_is() -> None:
    """The request is served with the tools that the session has. The next one asks again."""
    session = begin()
    served = session.ask()
    session.take_event(Outdated(deployment="d-2"))
    down = Failure(type="mcp_unavailable", message="the MCP server 'a' cannot be used", retryable=True)
    session.answer_preparation(down, agent=SECOND, tools=(), deployment="d-2")
    assert session.call.deployment is None
    session.reply("fine")
    assert session.find_ending(served) == ("completed", "final_answer")
    assert (session.state.settings.agent, list_tools(session), session.entry_names[-2:]) == (
        FIRST,
        ["add"],
        ["assistant", "run"],
    )
    session.ask()
    assert session.call.deployment == "d-1"


def test_a_timeout_of_the_new_preparation_ends_the_run() -> None:
    """It is no answer about a model."""
    session = begin()
    request_id = session.ask()
    session.take_event(Outdated(deployment="d-2"))
    session.take_event(Failure(type="timeout", message="no worker"))
    assert session.find_ending(request_id) == ("failed", "timeout")
    assert session.state.settings.agent == FIRST


def test_a_cancelled_request_leaves_the_session_as_it_was() -> None:
    """The next request finds out again that the session is outdated."""
    session = begin()
    session.ask()
    session.take_event(Outdated(deployment="d-2"))
    session.cancel()
    assert (session.state.phase, session.effect) == ("idle", None)
    session.ask()
    assert session.call.deployment == "d-1"


def test_the_new_preparation_is_carried() -> None:
    """To the next workflow run, with the agent and what callers have set."""
    session = begin(on_busy="queue")
    session.ask()
    session.take_event(Outdated(deployment="d-2"))
    carried = carry_over(session)
    assert carried.effect == Prepare(encoding="heuristic", agent="support", clears=None)
    assert (carried.state.settings.agent, carried.state.settings.own) == (FIRST, session.state.settings.own)
    assert carried.state.settings.config == session.state.settings.config
    assert carried.state.settings.own.model_fields_set == session.state.settings.own.model_fields_set


def test_a_pinned_session_keeps_agent_and_schemas() -> None:
    """A later preparation names no agent; the settings of the calls are the worker's present ones."""
    session = begin(pin=True)
    session.ask()
    assert session.call.deployment is None
    session.reply("fine")
    session.configure(model="openai:gpt-4.1")
    assert session.effect == Prepare(encoding="heuristic", model="openai:gpt-4.1", tools=("add",))
    session.take_event(make_prepared(renew(make_tool("add"))))
    assert (session.state.settings.agent, list_tools(session)) == (FIRST, ["add"])
    assert session.state.settings.tools
    assert session.state.settings.tools[0].timeout_seconds == 5


def test_a_pinned_session_renews_what_configure_names() -> None:
    """Tools by their names, or the agent with all its tools."""
    session = begin(pin=True)
    session.configure(tools=("add",))
    session.take_event(make_prepared(renew(make_tool("add"))))
    assert list_tools(session) == ["add, new"]
    assert session.state.settings.agent == FIRST
    session.configure(agent="support")
    assert session.effect == Prepare(encoding="heuristic", agent="support", tools=("add",), clears=None)
    session.answer_preparation(NO_AGENT)
    assert (session.state.settings.agent, list_tools(session)) == (FIRST, ["add, new"])
    session.ask()
    assert session.effect == Prepare(encoding="heuristic", agent="support", tools=("add",), clears=None)
    session.answer_preparation(agent=SECOND, tools=("add",))
    assert (session.state.settings.agent, list_tools(session)) == (SECOND, ["add"])
    session.reply("fine")
    session.configure(model="openai:gpt-4")
    assert session.effect == Prepare(encoding="heuristic", model="openai:gpt-4", tools=("add",))


def test_a_pinned_session_keeps_its_schemas_through_a_problem() -> None:
    """A worker that cannot resolve all tools, because a server is away, answers without them."""
    session = begin(pin=True)
    session.configure(model="openai:gpt-4.1")
    session.take_event(Prepared(problem=UNKNOWN, deployment="d-2"))
    assert list_tools(session) == ["add"]
    session.ask()
    session.take_event(make_prepared(renew(make_tool("add"))))
    assert list_tools(session) == ["add"]


def test_metadata_that_is_too_large_with_the_agents_is_a_problem() -> None:
    """It could not be handed to subagents. Once the agent is known, the session refuses the `configure`."""
    many = {f"key-{number}": "x" * 1500 for number in range(5)}
    agent = make_agent(metadata={f"of-{name}": value for name, value in many.items()}, tools=("add",))
    session = begin(agent, metadata=many)
    request_id = session.ask()
    session.answer_preparation(agent=agent, tools=("add",))
    assert session.find_ending(request_id) == ("failed", "too_large")
    # The entry can be read all the same, for a fork from it.
    payload = session.thread[session.thread.last_seq - 3].read(ConfigPayload)
    assert len(payload.config.metadata) == 10
    session.configure(metadata={})
    session.ask()
    session.answer_preparation(agent=agent, tools=("add",))
    session.reply("fine")
    with pytest.raises(TooLarge, match="with the agent's it has 10 names"):
        session.configure(metadata=many)


def renew(tool: ResolvedTool) -> ResolvedTool:
    """Make the tool as a later deployment has it."""
    spec: Any = {**tool.spec, "description": ", new"}
    return tool.model_copy(update={"spec": spec, "timeout_seconds": 5})


def make_prepared(*tools: ResolvedTool) -> Prepared:
    return Prepared(tools=tools, deployment="d-2")


def test_configure_with_the_same_tools_resolves_them_anew() -> None:
    """Also in a session without an agent. Another field needs no worker."""
    session = SessionHarness()
    session.configure(on_busy="queue")
    assert session.effect is None
    session.configure(tools=("add", "look"))
    assert session.effect == Prepare(encoding="heuristic", model="openai:gpt-4o", tools=("add", "look"))
    session.take_event(make_prepared(renew(make_tool("add")), make_tool("look")))
    assert list_tools(session) == ["add, new", "look"]
    assert list_changes(session) == [None, ["on_busy"], ["tools"]]


def test_configure_changes_what_is_the_sessions_own() -> None:
    """A new version does not change it, and changes all the rest."""
    session = begin()
    session.configure(system_prompt="mine", model_options=ModelOptions(seed=1), limits=Limits(max_total_tokens=9))
    session.configure(context_policy=ContextPolicy(max_messages=3))
    session.ask()
    session.take_event(Outdated(deployment="d-2"))
    options = ModelOptions(seed=2, temperature=1)
    agent = make_agent(
        version="v-2", system_prompt="two", model_options=options, context_policy=ContextPolicy(keep_last_turns=1)
    )
    session.answer_preparation(agent=agent, tools=())
    config = session.state.settings.config
    assert (config.system_prompt, config.limits) == ("mine", Limits(max_total_tokens=9))
    assert config.model_options == ModelOptions(seed=1, temperature=1)
    assert (session.state.settings.policy.max_messages, session.state.settings.policy.keep_last_turns) == (3, 1)


def test_another_agent_takes_the_place_of_the_first() -> None:
    """Until a worker has resolved it the first is in force."""
    session = begin()
    session.configure(agent="billing")
    assert session.effect == Prepare(encoding="heuristic", agent="billing", clears=None)
    assert session.state.settings.config.system_prompt == "one"
    session.answer_preparation(agent=make_agent("billing", system_prompt="bills"), tools=())
    assert session.thread[1].payload["agent"]["name"] == "billing"
    assert session.state.settings.config.system_prompt == "bills"


def test_what_contradicts_the_agent_is_a_problem_until_it_is_repaired() -> None:
    """At the start it cannot be checked. Once the agent is known, the session refuses the `configure`."""
    session = begin(context_policy=ContextPolicy(reserve_output_tokens=50_000))
    assert (session.state.settings.problem or UNKNOWN).type == "invalid_token_budget"
    session.configure(context_policy=ContextPolicy(reserve_output_tokens=100))
    request_id = session.ask()
    session.answer_preparation(agent=FIRST, tools=("add",))
    session.reply("fine")
    assert session.find_ending(request_id) == ("completed", "final_answer")
    with pytest.raises(InvalidTokenBudget):
        session.configure(context_policy=ContextPolicy(reserve_output_tokens=500_000))
    with pytest.raises(UnknownTool):
        session.configure(require_approval=("fly",))


def test_approvals_of_tools_that_the_agent_does_not_have_fail_requests() -> None:
    """A typo must not let a call run without its approval."""
    session = begin(require_approval=("ad",))
    request_id = session.ask()
    session.answer_preparation(agent=FIRST, tools=("add",))
    assert session.find_ending(request_id) == ("failed", "unknown_tool")


def test_a_recorded_configuration_says_what_is_whose() -> None:
    """What callers have set comes back as it was; the agent's part gives the same configuration."""
    session = begin(metadata={"a": "b"}, model_options=ModelOptions(temperature=None))
    session.configure(context_policy=ContextPolicy(max_messages=3), steering="step")
    payload = session.thread[session.thread.last_seq].read(ConfigPayload)
    own, own_policy, agent = configuration.split_config(payload)
    assert own == session.state.settings.own
    assert own.model_fields_set == session.state.settings.own.model_fields_set
    assert own_policy == ContextPolicy(max_messages=3)
    assert agent
    assert (agent.name, agent.version) == ("support", "v-1")
    in_force: SessionConfig = agent.config.overlay(own)
    assert in_force.model_copy(update={"context_policy": None}) == session.state.settings.config


@pytest.mark.parametrize("pin", [False, True])
def test_a_recorded_configuration_has_the_configured_names_of_tools(pin: bool) -> None:
    """A name may stand for several tools of an MCP server, or for none that a worker knows."""
    session = SessionHarness(tools=("mcp:files/*", "add"), prepare=False, pin=pin)
    session.answer_preparation(tools=("mcp__files__read", "mcp__files__write", "add", "read_result"))
    session.configure(tools=("add", "gone"))
    session.answer_preparation(problem=UNKNOWN, tools=())
    first, second = session.thread.filter_by_kind("config")
    assert first.read(ConfigPayload).config.tools == ("mcp:files/*", "add")
    assert second.read(ConfigPayload).config.tools == ("add", "gone")
    earlier = type(session.thread)(session.thread.slice(0, 0))
    fork = carrying.make_fork_state(Session(session.state, session.thread), earlier, "s-2", ())
    assert fork.preparation.tools == ("mcp:files/*", "add")


def test_a_recorded_configuration_has_the_names_of_schemas_only_once() -> None:
    """Of a session with as many tools as it may have, too: `read_result` is not one of the configuration."""
    names = tuple(f"tool-{number}" for number in range(128))
    session = SessionHarness(tools=names, prepare=False)
    session.answer_preparation(tools=(*names, "read_result"))
    payload = session.thread[0].read(ConfigPayload)
    assert (payload.tool_names, payload.config.tools) == (None, names)


@pytest.mark.parametrize("pin", [False, True])
def test_a_fork_has_the_agent_as_it_was_at_its_entry(pin: bool) -> None:
    """A pinned one keeps that version; another one is prepared anew when it starts."""
    session = begin(pin=pin, metadata={"a": "b"})
    session.configure(agent="support")
    session.answer_preparation(agent=SECOND, tools=("add", "look"))
    thread = carry_over(session).thread
    earlier = type(thread)(thread.slice(0, 0))
    state = carrying.make_fork_state(Session(session.state, session.thread), earlier, "s-2", ())
    assert state.settings.agent
    assert (
        state.settings.agent.version,
        state.settings.config.system_prompt,
        state.settings.config.max_iterations,
    ) == ("v-1", "one", 5)
    assert state.settings.own == session.state.settings.own
    names = {"model": "openai:gpt-4o", "tools": ("add",)} if pin else {"agent": "support", "clears": None}
    assert state.preparation == Prepare.model_validate({"encoding": "heuristic", **names})


def test_status_and_the_temporal_ui_show_the_agent() -> None:
    """The name and the version; before it is resolved, the name that the caller has set."""
    session = SessionHarness(prepare=False, agent="support")
    assert views.answer_status(session.state, session.thread)["config"]["agent"] == "support"
    session.answer_preparation(agent=FIRST, tools=("add",))
    status = views.answer_status(session.state, session.thread)
    assert status["agent"] == {"name": "support", "version": "v-1"}
    assert "agent `support` v&#45;1" in ui.describe_session(session.state, session.thread, texts=True)
    assert ui.make_label(session.state.preparation, session.state) == "agent support"
