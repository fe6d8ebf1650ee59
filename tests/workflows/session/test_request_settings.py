"""The settings of a request hold for its run, in the order of their precedence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.contract import ContextOperation, ModelOptions
from clew.errors import InvalidInput, UnknownTool
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.session import checkpoints, requests
from clew_workflows.thread.context.contexts import rebuild_context
from clew_workflows.thread.entries import Entry
from tests.support.session_harness import SessionHarness, make_agent, make_reply


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
    assert session.state.run.clock.deadline == 7
    session.reply("", "add")
    assert session.thread[-1 + session.thread.rev].payload["termination_reason"] == "max_iterations"
    session.ask("plain")
    assert session.call.model == "openai:gpt-4o"
    assert (session.call.options.temperature, session.call.context_policy) == (1, None)
    assert session.state.run.clock.deadline == 100


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


@pytest.mark.parametrize("policy", [None, ContextPolicy(reserve_output_tokens=100)])
def test_a_message_that_shortens_only_makes_no_reply_longer(policy: ContextPolicy | None) -> None:
    """Whether the agent's options name the longest reply, or its policy does. Others have what they ask for."""
    options = ModelOptions() if policy else ModelOptions(max_output_tokens=100)
    session = SessionHarness(agent="support", prepare=False)
    session.answer_preparation(agent=make_agent(context_policy=policy, model_options=options))
    for wanted, longest in ((9, 9), (1000, 100), (None, 100)):
        session.ask(model_options=ModelOptions(max_output_tokens=wanted), shortens_only=True)
        assert session.call.options.max_output_tokens == longest
        session.reply("hi")
    session.ask(model_options=ModelOptions(max_output_tokens=1000))
    assert session.call.options.max_output_tokens == 1000


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
    assert session.build_context(session.call).meta.policy_hash == session.state.settings.policy.hash


def test_the_policy_of_a_request_overlays_the_sessions_field_by_field() -> None:
    """What the request does not name stays as the session has it."""
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=3000, keep_last_turns=7))
    session.ask(context_policy=ContextPolicy(keep_last_turns=1))
    expected = session.state.settings.policy.model_copy(update={"keep_last_turns": 1})
    assert session.build_context(session.call).meta.policy_hash == expected.hash


def test_what_a_message_sets_for_its_run_is_in_its_entry() -> None:
    """Beside what the call's recipe holds: how long it may take, how many calls it may make."""
    session = SessionHarness()
    session.ask("one", timeout_seconds=7, max_iterations=2, on_busy="queue")
    assert session.thread[1].payload["settings"] == {"timeout_seconds": 7, "max_iterations": 2, "on_busy": "queue"}


def test_a_choice_of_a_tool_that_the_session_does_not_have_is_refused() -> None:
    """The session refuses the message, and commits nothing."""
    session = SessionHarness()
    with pytest.raises(InvalidInput, match="tool_choice"):
        session.ask(model_options=ModelOptions(tool_choice="fly"))
    assert session.entry_names == ["config"]
    for choice in ("auto", "none", "required", "look"):
        session.ask(model_options=ModelOptions(tool_choice=choice))
        session.reply("fine")


def test_a_request_may_have_some_of_the_sessions_tools() -> None:
    """The model sees them alone, in the order of the session's, and the recipe rebuilds the call."""
    session = SessionHarness(tools=("add", "look", "read_result"))
    session.ask(tools=("look",))
    shown = session.build_context(session.call)
    assert [tool["name"] for tool in shown.tool_spec] == ["look", "read_result"]
    session.reply("", "add", "look")
    assert [call.name for call, _ in session.round.calls] == ["look"]
    assert "the tools are: look" in session.thread[session.thread.last_seq].payload["content"]
    recipe = session.thread[2].recipe
    assert recipe is not None
    assert recipe.tools == ("look", "read_result")
    again = rebuild_context(session.thread, recipe, None)
    assert (again.messages, again.tool_spec, again.meta.digest) == (
        shown.messages,
        shown.tool_spec,
        shown.meta.digest,
    )
    session.answer_calls("seen")
    assert session.build_context(session.call).tool_spec == shown.tool_spec
    session.reply("fine")
    session.ask()
    assert [tool["name"] for tool in session.build_context(session.call).tool_spec] == ["add", "look", "read_result"]


def test_a_request_may_have_no_tools() -> None:
    """With an empty list; a choice of one is refused then."""
    session = SessionHarness()
    with pytest.raises(InvalidInput, match="tool_choice"):
        session.ask(tools=(), model_options=ModelOptions(tool_choice="look"))
    session.ask(tools=())
    assert session.build_context(session.call).tool_spec == []


def test_a_request_cannot_have_a_tool_that_the_session_does_not_have() -> None:
    """The message is refused, and nothing is committed. Neither can a message that joins a run choose its tools."""
    session = SessionHarness()
    with pytest.raises(UnknownTool, match="'fly'"):
        session.ask(tools=("look", "fly"))
    assert session.entry_names == ["config"]
    session.ask()
    with pytest.raises(InvalidInput, match="tools"):
        session.ask(tools=("look",), on_busy="steer")


def test_another_choice_of_tools_begins_another_prefix() -> None:
    """A call whose tools are others than those of the call before shares nothing with it."""
    session = SessionHarness(context_policy=ContextPolicy(window="epoch"))
    shared = []
    for number, tools in enumerate((("look",), ("look",), ("add",), None)):
        session.ask(f"question {number}", tools=tools)
        meta = session.build_context(session.call).meta
        shared.append(bool(meta.shared_prefix_tokens))
        session.take_event(
            make_reply(content="fine").model_copy(update={"epoch": meta.epoch, "policy_hash": meta.policy_hash})
        )
    assert shared == [False, True, False, False]


def test_a_callers_refs_are_kept_and_shown_to_no_model() -> None:
    """On messages, messages that join a run, steers and injects; in their entries and in transcripts."""
    session = SessionHarness()
    session.ask("one", refs={"mail": "m-1"})
    session.ask("two", "joined", on_busy="steer", refs={"mail": "m-2"})
    session.steer("three", refs={"mail": "m-3"})
    session.steer("four", kind="inject", refs={"mail": "m-4"})
    session.reply("fine")
    users = [entry for entry in session.thread if entry.payload.get("role") == "user"]
    expected = [{"mail": f"m-{n}"} for n in (1, 2, 3, 4)]
    assert [entry.payload["refs"] for entry in users] == expected
    assert [entry.transcript_message["refs"] for entry in users] == expected
    assert "settings" not in users[0].payload
    assert not any("refs" in message for message in session.build_context(session.call).messages)


def test_a_checkpoint_has_the_callers_refs() -> None:
    """A session that is restored from it has them in its snapshot, and so has its own checkpoint."""
    session = SessionHarness()
    session.ask("one", refs={"mail": "m-1"})
    session.reply("fine")
    session.ask("two")
    session.reply("fine")

    def read_refs(session: SessionHarness) -> tuple[dict[str, Any], list[Any]]:
        draft = checkpoints.draft_checkpoint(session.state, session.thread, "default", session.thread.last_seq)
        payload = json.loads(draft.payload)
        return payload, [message.get("refs") for message in payload["context"]["messages"]]

    payload, refs = read_refs(session)
    assert refs == [{"mail": "m-1"}, None, None, None]
    restored = SessionHarness()
    restored.do(
        ContextOperation.model_validate_json(json.dumps(checkpoints.make_restore_operation(payload, "restore-1")))
    )
    assert restored.context().messages == session.context().messages
    assert [Entry.from_json(entry.as_dict()) for entry in restored.thread] == list(restored.thread)
    restored.ask("three", refs={"mail": "m-3"})
    restored.reply("fine")
    assert read_refs(restored)[1] == [{"mail": "m-1"}, None, None, None, {"mail": "m-3"}, None]


def test_options_of_a_request_overlay_the_sessions_one_by_one() -> None:
    """Those of a provider are one option: a request's replace the session's."""
    session = SessionHarness(
        model_options=ModelOptions(top_p=0.5, verbosity="low", provider_options={"openai": {"user": "u"}})
    )
    session.ask(model_options=ModelOptions(verbosity="high", provider_options={"anthropic": {"top_k": 3}}))
    options = session.call.options
    assert (options.top_p, options.verbosity) == (0.5, "high")
    assert options.provider_options == {"anthropic": {"top_k": 3}}
    session.reply("hi")
    session.ask(model_options=ModelOptions(provider_options=None))
    assert (session.call.options.verbosity, session.call.options.provider_options) == ("low", None)


def test_the_tools_of_a_provider_are_those_of_the_configuration_each_once() -> None:
    """A provider refuses a tool that is declared twice. The reply's recipe names them."""
    session = SessionHarness(provider_tools=("web_search", "code_execution", "web_search"))
    session.ask()
    assert session.call.provider_tools == ("web_search", "code_execution")
    session.reply("hi")
    replies = [entry.recipe for entry in session.thread if entry.recipe]
    assert [recipe.provider_tools for recipe in replies] == [("web_search", "code_execution")]
