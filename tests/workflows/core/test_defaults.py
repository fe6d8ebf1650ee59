"""What a session goes by where its configuration leaves it open: the choices of a worker's catalog for its model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clew.contract import SessionConfig
from clew.contract.policy import ContextPolicy
from clew.model.catalog import EDITION
from clew.model.tokens import encoding
from clew_activities.prepare import defaults_for
from clew_workflows.core import checkpoints, decisions
from clew_workflows.protocol import Defaults, Failure, Prepared
from tests.support.decisions import UNKNOWN, Session, journey


def chosen(session: Session) -> ContextPolicy:
    """The policy of the newest configuration, as the thread tells it."""
    payload = session.thread.filter_by_kind("config")[-1].payload
    assert payload["context_policy"] == session.state.policy.model_dump(mode="json")
    return session.state.policy


def test_a_session_begins_under_what_the_worker_answers() -> None:
    """Policy and encoding are in force before the first entry, which is counted under them."""
    session = Session(catalog=True, model="openai:gpt-4", system_prompt="Weigh the internationalization twice.")
    config = session.thread[0]
    assert session.facts == ["config"]
    assert chosen(session) == ContextPolicy.for_model("openai:gpt-4").complete()
    assert config.payload["context_policy"]["window"] == "epoch"
    assert config.payload["encoding"] == "cl100k_base"
    assert config.payload["tokens"]["system_prompt"] == encoding("cl100k_base").system(session.config.system_prompt)
    assert session.state.defaults == defaults_for("openai:gpt-4")


def test_what_is_configured_wins() -> None:
    """A policy of the agent's overlays the contract's defaults and none of the catalog's; so does an encoding."""
    session = Session(
        catalog=True, model="openai:gpt-4", context_policy=ContextPolicy(max_messages=9), encoding="o200k_base"
    )
    assert chosen(session) == ContextPolicy(max_messages=9).complete()
    assert session.thread[0].payload["encoding"] == "o200k_base"


def test_an_answer_of_an_earlier_release_leaves_everything_as_it_was() -> None:
    """Without defaults in it: sliding windows, `o200k_base`, and the numbers of the first edition, for good."""
    session = Session(catalog=True, prepare=False, model="anthropic:claude-opus-4-6", tools=())
    session.catalog = False
    session.prepared()
    first = ContextPolicy(max_input_tokens=200_000, reserve_output_tokens=8192, keep_last_turns=10).complete()
    assert chosen(session) == first
    assert session.thread[0].payload["encoding"] == "o200k_base"
    session.ask("hello", model="openai:gpt-4-turbo")
    assert session.call.context_policy
    assert session.call.context_policy.window == "sliding"
    assert session.call.context_policy.reserve_output_tokens == 8192
    session.reply("hi")
    session.catalog = True
    session.configure(tools=("add",))
    session.prepared(tools=("add",))
    assert chosen(session) == first
    assert session.state.defaults is None


def test_a_new_model_is_asked_about() -> None:
    """Its defaults come with the preparation; the encoding is the thread's and stays."""
    session = Session(catalog=True, model="openai:gpt-4")
    session.configure(model="openai:gpt-4o")
    session.prepared()
    assert chosen(session) == ContextPolicy.for_model("openai:gpt-4o").complete()
    assert session.thread[1].payload["encoding"] == "cl100k_base"
    before = session.state.defaults
    session.configure(tools=("add",))
    session.prepared(tools=("add",))
    assert session.state.defaults == before


def test_a_catalog_that_changes_changes_no_session() -> None:
    """What a worker chose stays until the model changes, whatever later workers would choose."""
    session = Session(catalog=True, model="openai:gpt-4")
    mine = session.state.policy
    other = Defaults(
        model="openai:gpt-4", policy=ContextPolicy(max_input_tokens=99_999), encoding="o200k_base", edition=9
    )
    session.configure(tools=())
    session.happened(Prepared(defaults=other))
    assert (chosen(session), session.state.defaults) == (mine, defaults_for("openai:gpt-4"))


def test_configure_lays_over_what_the_worker_chose() -> None:
    """Field by field, also when the model changes beside it."""
    session = Session(catalog=True)
    session.configure(context_policy=ContextPolicy(keep_last_turns=2))
    assert chosen(session) == defaults_for("openai:gpt-4o").policy.overlaid(ContextPolicy(keep_last_turns=2))
    session.configure(model="openai:gpt-4.1", context_policy=ContextPolicy(max_messages=5))
    session.prepared()
    whole = defaults_for("openai:gpt-4.1").policy.overlaid(ContextPolicy(keep_last_turns=2, max_messages=5))
    assert chosen(session) == whole


def test_a_choice_that_does_not_go_with_what_was_configured_is_left_aside() -> None:
    """The session goes on under the policy that was checked when it was configured."""
    session = Session(catalog=True)
    session.configure(model="openai:gpt-4.1", context_policy=ContextPolicy(reserve_output_tokens=500_000))
    small = Defaults(model="openai:gpt-4.1", policy=ContextPolicy(), encoding="o200k_base", edition=EDITION)
    session.happened(Prepared(defaults=small))
    assert chosen(session).max_input_tokens == 1_047_576
    request_id = session.ask()
    session.reply("fine")
    assert session.ended(request_id) == ("completed", "final_answer")


@pytest.mark.parametrize("problem", [Failure(type="timeout", message="?"), UNKNOWN])
def test_a_worker_that_could_not_tell_is_asked_again(problem: Failure) -> None:
    """What it then chooses is a configuration of its own, committed before the model is called."""
    session = Session(catalog=True, prepare=False, model="anthropic:claude-opus-4-6")
    session.happened(Prepared(tools=(), problem=problem))
    assert session.state.policy.window == "sliding"
    session.ask()
    session.prepared()
    assert session.facts == ["config", "user", "config"]
    assert chosen(session) == ContextPolicy.for_model("anthropic:claude-opus-4-6").complete()
    assert session.call.at_seq == 2


def test_a_request_with_a_model_of_its_own_has_a_policy_of_its_edition() -> None:
    """In epochs where the session's own defaults came from a worker."""
    session = Session(catalog=True)
    session.ask("hello", model="anthropic:claude-opus-4-6")
    assert session.call.context_policy == ContextPolicy.for_model("anthropic:claude-opus-4-6").complete()


def test_what_was_chosen_is_carried() -> None:
    """To the next run of the workflow, also while it is not known yet."""
    session = Session(catalog=True, model="openai:gpt-4")
    session.configure(model="openai:gpt-4o")
    carried = journey(session)
    assert carried.state.defaults == defaults_for("openai:gpt-4")
    assert carried.state.defaults_due
    assert carried.effect == session.effect
    session.prepared()
    assert journey(session).state.defaults == defaults_for("openai:gpt-4o")
    assert journey(session).state.config.encoding == "cl100k_base"


def test_a_session_from_a_checkpoint_is_counted_as_the_other_was() -> None:
    """The encoding goes along; a policy that is the model's own is left to the worker that opens the checkpoint."""
    session = Session(catalog=True, model="openai:gpt-4", tools=())
    session.ask()
    session.reply("fine")
    draft = checkpoints.drafted(session.state, session.thread, "default", session.thread.last_seq)
    assert '"config":{"encoding":"cl100k_base","model":"openai:gpt-4","tools":[]}' in draft.payload
    session.configure(context_policy=ContextPolicy(keep_last_turns=1))
    draft = checkpoints.drafted(session.state, session.thread, "default", session.thread.last_seq)
    assert '"keep_last_turns":1' in draft.payload
    assert '"window":"epoch"' in draft.payload


def test_a_carried_session_of_an_earlier_release_has_no_defaults() -> None:
    """It keeps the configuration that it has: nothing is taken from a worker unless its model changes."""
    state = replace(decisions.begin("s", SessionConfig(model="openai:gpt-4")), defaults_due=False, phase="idle")
    after = decisions.prepared(state, Prepared(defaults=defaults_for("openai:gpt-4")), Session().now).state
    assert (after.policy, after.defaults) == (state.policy, None)
