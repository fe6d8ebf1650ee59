"""The settings of a request hold for its run, in the order of their precedence."""

from __future__ import annotations

import pytest

from clew.contract import ModelOptions
from clew.contract.policy import ContextPolicy
from clew.errors import InvalidInput
from clew_workflows.core import requests
from tests.support.session_harness import SessionHarness


def test_a_request_may_bring_settings_of_its_own() -> None:
    """Model, options, iterations, time and policy are the request's where it names them, and no one else's."""
    session = SessionHarness(
        model_options=ModelOptions(temperature=1, seed=1), max_iterations=3, request_timeout_seconds=100
    )
    session.ask(
        model="anthropic:claude-sonnet-4-5",
        model_options=ModelOptions(temperature=0),
        max_iterations=1,
        timeout_seconds=7,
    )
    call = session.call
    assert call.model == "anthropic:claude-sonnet-4-5"
    assert (call.options.temperature, call.options.seed) == (0, 1)
    assert session.state.run is not None
    assert session.state.run.deadline == 7
    session.reply("", "add")
    assert session.thread[-1 + session.thread.rev].payload["termination_reason"] == "max_iterations"
    session.ask("plain")
    assert session.call.model == "openai:gpt-4o"
    assert (session.call.options.temperature, session.call.context_policy) == (1, None)
    assert session.state.run.deadline == 100


def test_max_output_tokens_is_always_set() -> None:
    """By the request, the session, or what the policy in force reserves for the output."""
    policy = ContextPolicy(reserve_output_tokens=1000)
    session = SessionHarness(context_policy=policy)
    session.ask()
    assert session.call.options.max_output_tokens == 1000
    session.reply("hi")
    session.ask(context_policy=ContextPolicy(reserve_output_tokens=500))
    assert session.call.options.max_output_tokens == 500
    session.reply("hi")
    session.ask(context_policy=ContextPolicy(reserve_output_tokens=0))
    assert session.call.options.max_output_tokens == requests.DEFAULT_OUTPUT_TOKENS
    session.reply("hi")
    session.ask(model_options=ModelOptions(max_output_tokens=9))
    assert session.call.options.max_output_tokens == 9


def test_a_request_with_another_model_gets_the_policy_for_that_model() -> None:
    """Where the agent has chosen none: the window of the session's model says nothing about another's."""
    session = SessionHarness(table=True, model="openai:gpt-4o")
    session.ask(model="local:smollm2", context_policy=ContextPolicy(keep_last_turns=1))
    policy = session.call.context_policy
    assert policy is not None
    assert (policy.max_input_tokens, policy.keep_last_turns) == (8192, 1)
    assert session.build_context(session.call).meta.policy_hash == policy.hash


def test_a_policy_that_the_agent_chose_holds_for_every_model() -> None:
    """Only the request's own policy stands above it: a request's model says nothing about it."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=3000, include_kinds=("message",)))
    session.ask(model="openai:gpt-4.1")
    assert session.call.context_policy is None
    assert session.build_context(session.call).meta.policy_hash == session.state.policy.hash


def test_the_policy_of_a_request_overlays_the_sessions_field_by_field() -> None:
    """What the request does not name stays as the session has it."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=3000, keep_last_turns=7))
    session.ask(context_policy=ContextPolicy(keep_last_turns=1))
    expected = session.state.policy.model_copy(update={"keep_last_turns": 1})
    assert session.build_context(session.call).meta.policy_hash == expected.hash


def test_what_a_message_sets_for_its_run_is_in_its_entry() -> None:
    """Beside what the call's recipe holds: how long it may take, how many calls it may make."""
    session = SessionHarness()
    session.ask("one", timeout_seconds=7, max_iterations=2, on_busy="queue")
    assert session.thread[1].payload["settings"] == {"timeout_seconds": 7, "max_iterations": 2, "on_busy": "queue"}


def test_a_choice_of_a_tool_that_the_session_does_not_have_is_refused() -> None:
    """At the door: nothing is committed."""
    session = SessionHarness()
    with pytest.raises(InvalidInput, match="tool_choice"):
        session.ask(model_options=ModelOptions(tool_choice="fly"))
    assert session.entry_names == ["config"]
    for choice in ("auto", "none", "required", "look"):
        session.ask(model_options=ModelOptions(tool_choice=choice))
        session.reply("fine")
