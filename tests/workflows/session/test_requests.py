"""The settings of requests, in the order of their precedence, and the profiles of models that they name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.contract import ContextOperation, ModelOptions
from clew.errors import InvalidInput, UnknownTool
from clew_activities.model.model_table import choose_policy
from clew_activities.model.prepare import make_profile
from clew_workflows.contract.outcomes import Price
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import CallModel, DescribeModel, Failure, ModelProfile, Prepare, Prepared
from clew_workflows.session import checkpoints, requests
from clew_workflows.thread.context.contexts import rebuild_context
from clew_workflows.thread.entries import Entry
from tests.support.session_harness import UNKNOWN, SessionHarness, carry_over, make_agent, make_reply

# The settings of a request hold for its run, in the order of their precedence.


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


# What a session knows of models: profiles that workers have answered, and what it does where it has none.


OTHER = "anthropic:claude-opus-4-6"


def get_policy(session: SessionHarness) -> ContextPolicy:
    """The policy of the newest configuration, as the thread tells it."""
    payload = session.thread.filter_by_kind("config")[-1].payload
    assert payload["context_policy"] == session.state.settings.policy.model_dump(mode="json")
    return session.state.settings.policy


def make_small_profile(model: str, tokens: int = 4_000) -> ModelProfile:
    """A profile that the table does not have."""
    policy = ContextPolicy(max_input_tokens=tokens, reserve_output_tokens=500).complete()
    return ModelProfile(model=model, policy=policy, encoding="o200k_base")


def test_a_session_begins_under_what_the_worker_answers() -> None:
    """Policy and encoding are in force before the first entry, which is counted under them."""
    session = SessionHarness(table=True, model="openai:gpt-4", system_prompt="Weigh the internationalization twice.")
    config = session.thread[0]
    assert session.entry_names == ["config"]
    assert get_policy(session) == choose_policy("openai:gpt-4")
    assert config.payload["context_policy"]["window"] == "epoch"
    assert config.payload["encoding"] == "cl100k_base"
    assert config.payload["tokens"]["system_prompt"] == load_encoding("cl100k_base").count_system_prompt(
        session.config.system_prompt
    )
    assert session.state.settings.profiles == {"openai:gpt-4": make_profile("openai:gpt-4")}


def test_what_is_configured_wins() -> None:
    """A policy of the agent's overlays the contract's defaults and none of the model's; so does an encoding."""
    policy = ContextPolicy(max_messages=9)
    session = SessionHarness(table=True, model="openai:gpt-4", context_policy=policy, encoding="o200k_base")
    assert get_policy(session) == policy.complete()
    assert session.thread[0].payload["encoding"] == "o200k_base"


def test_a_new_model_is_asked_about() -> None:
    """Its profile comes with the preparation; the encoding is the thread's and stays."""
    session = SessionHarness(table=True, model="openai:gpt-4")
    session.configure(model="openai:gpt-4o")
    session.answer_preparation()
    assert get_policy(session) == choose_policy("openai:gpt-4o")
    assert session.thread[1].payload["encoding"] == "cl100k_base"
    before = session.state.settings.profiles
    session.configure(tools=("add",))
    session.answer_preparation(tools=("add",))
    assert session.state.settings.profiles == before


def test_a_worker_that_changes_its_mind_changes_no_session() -> None:
    """What it has told of a model stays, also after another model; only its prices are those of the newest answer."""
    session = SessionHarness(table=True, model="openai:gpt-4")
    mine, dear = session.state.settings.policy, (Price(input=1e6, output=1e6),)
    session.configure(tools=())
    session.take_event(Prepared(profile=make_small_profile("openai:gpt-4").model_copy(update={"prices": dear})))
    known = make_profile("openai:gpt-4").model_copy(update={"prices": dear})
    assert (get_policy(session), session.state.settings.profiles["openai:gpt-4"]) == (mine, known)
    session.configure(model="openai:gpt-4o")
    session.answer_preparation()
    session.configure(model="openai:gpt-4")
    session.take_event(Prepared(profile=make_small_profile("openai:gpt-4")))
    assert get_policy(session) == mine


def test_configure_lays_over_what_the_worker_chose() -> None:
    """Field by field, also when the model changes beside it."""
    session = SessionHarness(table=True)
    session.configure(context_policy=ContextPolicy(keep_last_turns=2))
    assert get_policy(session) == choose_policy("openai:gpt-4o").overlay(ContextPolicy(keep_last_turns=2))
    session.configure(model="openai:gpt-4.1", context_policy=ContextPolicy(max_messages=5))
    session.answer_preparation()
    assert get_policy(session) == choose_policy("openai:gpt-4.1").overlay(
        ContextPolicy(keep_last_turns=2, max_messages=5)
    )


def test_a_choice_that_does_not_go_with_what_was_configured_is_left_aside() -> None:
    """The session goes on under the policy that was checked when it was configured, and takes other changes."""
    session = SessionHarness(table=True)
    session.configure(model="openai:new", context_policy=ContextPolicy(reserve_output_tokens=50_000))
    session.take_event(Prepared(profile=make_small_profile("openai:new")))
    assert (get_policy(session).max_input_tokens, get_policy(session).reserve_output_tokens) == (128_000, 50_000)
    session.configure(system_prompt="Be brief.")
    request_id = session.ask()
    session.reply("fine")
    assert session.find_ending(request_id) == ("completed", "final_answer")


@pytest.mark.parametrize("problem", [Failure(type="timeout", message="?"), UNKNOWN])
def test_a_worker_that_could_not_tell_is_asked_again(problem: Failure) -> None:
    """Until then the contract's defaults stand in. What is then chosen is committed before the model is called."""
    session = SessionHarness(table=True, prepare=False, model=OTHER)
    session.take_event(Prepared(tools=(), problem=problem))
    assert get_policy(session) == ContextPolicy().complete()
    session.ask()
    session.answer_preparation()
    assert session.entry_names == ["config", "user", "config"]
    assert get_policy(session) == choose_policy(OTHER)
    assert session.call.at_seq == 2


def test_a_requests_own_model_is_asked_about_once() -> None:
    """What was asked is committed first. The call is made under the model's policy; later requests ask no worker."""
    session = SessionHarness(table=True)
    session.describing = False
    session.ask("hello", model=OTHER)
    assert (session.entry_names, session.effect) == (["config", "user"], DescribeModel(model=OTHER))
    assert session.state.phase == "preparing"
    session.take_event(make_profile(OTHER))
    assert session.call.context_policy == choose_policy(OTHER)
    assert session.call.options.max_output_tokens == choose_policy(OTHER).reserve_output_tokens
    session.reply("hi")
    session.ask("again", model=OTHER)
    session.reply("hi")
    session.ask("and again", model="openai:gpt-4o")
    assert [type(effect) for effect in session.effects] == [DescribeModel, CallModel, CallModel, CallModel]


def test_a_requests_own_model_is_asked_about_after_a_problem_is_gone() -> None:
    """First the configuration is prepared anew, then the model is asked about, then it is called."""
    session = SessionHarness(table=True, prepare=False)
    session.answer_preparation(problem=UNKNOWN)
    session.ask("hello", model=OTHER)
    session.answer_preparation()
    assert [type(effect) for effect in session.effects] == [Prepare, DescribeModel, CallModel]
    assert session.call.context_policy == choose_policy(OTHER)


def test_a_request_fails_whose_model_no_worker_tells_of() -> None:
    """And the next one asks again; the session's own model is no worse for it."""
    session = SessionHarness(table=True)
    session.describing = False
    first = session.ask("hello", model=OTHER)
    session.take_event(Failure(type="timeout", message="no worker", retryable=True))
    assert session.find_ending(first) == ("failed", "timeout")
    assert (session.state.settings.problem, session.state.phase) == (None, "idle")
    second = session.ask("hello", model=OTHER)
    assert session.effect == DescribeModel(model=OTHER)
    session.cancel()
    assert session.find_ending(second) == ("cancelled", "cancelled")
    session.ask("hello")
    assert session.call.model == "openai:gpt-4o"


def test_a_policy_for_a_model_that_is_not_known_is_checked_when_it_is() -> None:
    """Ingress cannot check it for an unknown model; for a known model it refuses it."""
    session = SessionHarness(table=True)
    session.describing = False
    wide = ContextPolicy(reserve_output_tokens=200_000)
    fits = session.ask("hello", model=OTHER, context_policy=wide)
    session.take_event(make_profile(OTHER))
    assert session.call.context_policy == choose_policy(OTHER).overlay(wide)
    session.reply("fine")
    assert session.find_ending(fits) == ("completed", "final_answer")
    refused = session.ask("hello", model="openai:gpt-4", context_policy=wide)
    session.take_event(make_profile("openai:gpt-4"))
    assert session.find_ending(refused) == ("failed", "invalid_token_budget")


def test_a_change_that_turns_out_not_to_fit_is_dropped_with_its_reason() -> None:
    """It waited for the run in which a worker told of its model."""
    session = SessionHarness(table=True)
    session.describing = False
    request_id = session.ask("hello", model="openai:tiny")
    session.configure(model="openai:tiny", context_policy=ContextPolicy(reserve_output_tokens=5_000))
    session.take_event(make_small_profile("openai:tiny"))
    session.reply("fine")
    assert session.find_ending(request_id) == ("completed", "final_answer")
    (dropped,) = session.events("dropped")
    assert dropped["kind"] == "configure"
    assert "max_input_tokens (4000)" in dropped["reason"]
    assert session.state.settings.config.model == "openai:gpt-4o"


def test_a_bounded_number_of_models_is_remembered() -> None:
    """The newest, and the configuration's; one that was forgotten is asked about again."""
    session = SessionHarness(table=True)
    for number in range(2 * requests.MAX_PROFILES):
        session.ask("hello", model=f"openai:m-{number}")
        session.reply("fine")
    assert len(session.state.settings.profiles) == requests.MAX_PROFILES
    assert "openai:gpt-4o" in session.state.settings.profiles
    assert f"openai:m-{2 * requests.MAX_PROFILES - 1}" in session.state.settings.profiles
    session.describing = False
    session.ask("hello", model="openai:m-0")
    assert session.effect == DescribeModel(model="openai:m-0")


def test_what_is_known_is_carried() -> None:
    """To the next run of the workflow: of the configuration's model, of requests' own, and what is being asked."""
    session = SessionHarness(table=True, model="openai:gpt-4")
    session.ask("hello", model=OTHER)
    session.reply("fine")
    session.configure(model="openai:gpt-4o")
    carried = carry_over(session)
    assert carried.state.settings.profiles == {name: make_profile(name) for name in ("openai:gpt-4", OTHER)}
    assert carried.effect == session.effect
    session.answer_preparation()
    assert list(carry_over(session).state.settings.profiles) == ["openai:gpt-4", OTHER, "openai:gpt-4o"]
    assert carry_over(session).state.settings.config.encoding == "cl100k_base"
    session.describing = False
    session.ask("hello", model="openai:gpt-4.1")
    assert carry_over(session).effect == DescribeModel(model="openai:gpt-4.1")


def test_a_session_from_a_checkpoint_is_counted_as_the_other_was() -> None:
    """The encoding goes along; a policy that is the model's own is left to the worker that opens the checkpoint."""
    session = SessionHarness(table=True, model="openai:gpt-4", tools=())
    session.ask()
    session.reply("fine")
    draft = checkpoints.draft_checkpoint(session.state, session.thread, "default", session.thread.last_seq)
    assert '"config":{"encoding":"cl100k_base","model":"openai:gpt-4","tools":[]}' in draft.payload
    session.configure(context_policy=ContextPolicy(keep_last_turns=1))
    draft = checkpoints.draft_checkpoint(session.state, session.thread, "default", session.thread.last_seq)
    assert '"keep_last_turns":1' in draft.payload
    assert '"window":"epoch"' in draft.payload
