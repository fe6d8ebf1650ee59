"""What a session knows of models: profiles that workers have answered, and what it does where it has none."""

from __future__ import annotations

import pytest

from clew_activities.model.model_table import choose_policy
from clew_activities.model.prepare import make_profile
from clew_workflows.contract.outcomes import Price
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import CallModel, DescribeModel, Failure, ModelProfile, Prepare, Prepared
from clew_workflows.session import checkpoints, requests
from tests.support.session_harness import UNKNOWN, SessionHarness, carry_over

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
