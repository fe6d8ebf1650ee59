"""What a model takes, by what its provider has said: refusals, and counts that are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.contract import ModelOptions
from clew.errors import ContextOverflow
from clew_activities.model.prepare import make_profile
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import ErrorPayload, Refused, SentRequest
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import CallModel, Failure
from clew_workflows.session import budgets
from clew_workflows.session.state import EIGHTHS, Learned, get_run
from clew_workflows.thread.context.contexts import rebuild_context
from clew_workflows.thread.entries import Entry
from tests.support.examples import examples
from tests.support.session_harness import (
    MODEL,
    SMALL,
    SessionHarness,
    begin_small,
    carry_over,
    make_refusal,
    reply,
    take_turn,
)


def get_budget(session: SessionHarness, call: CallModel) -> int:
    return session.state.settings.policy.overlay(call.context_policy).budget


def assert_reproduced(session: SessionHarness) -> None:
    """What each call was shown is made again from the entries alone."""
    for entry in list_replies(session):
        recipe = entry.recipe
        assert recipe is not None
        again = rebuild_context(session.thread, recipe, None).meta
        assert (again.digest, again.policy_hash) == (recipe.digest, recipe.policy_hash)
        assert again.estimated_tokens == recipe.input_tokens


def list_replies(session: SessionHarness) -> list[Entry]:
    return [entry for entry in session.thread if "recipe" in entry.payload]


def test_a_refused_context_is_made_shorter_once() -> None:
    """The refusal is a fact that says with which budget it goes on; the new call's recipe holds its policy."""
    session = begin_small()
    for _ in range(5):
        take_turn(session, 160)
    request_id = session.ask("x" * 400)
    first = session.call
    counted = session.build_context(first).meta.estimated_tokens
    session.take_event(make_refusal(session, limit=counted - 200, actual=counted))
    again, budget = session.call, get_budget(session, session.call)
    assert again == first.model_copy(
        update={
            "call_id": "call-7",
            "at_seq": first.at_seq + 1,
            "context_policy": again.context_policy,
            # The worker of the first call was of the session's deployment.
            "deployment": None,
            "hooks": None,
            "limited": None,
        }
    )
    assert (again.iteration, budget < counted - 200) == (1, True)
    error = list(session.thread)[-1]
    assert error.payload == {
        "type": "context_length_exceeded",
        "message": "too long",
        "details": {
            "counted": counted,
            "status": 400,
            "limit": counted - 200,
            "actual": counted,
            "retried": {"call_id": "call-7", "model": MODEL, "budget": budget},
        },
    }
    assert error.refs["call_id"] == "call-6"
    assert session.build_context(again).meta.estimated_tokens <= budget
    assert session.build_context(again).messages[-1]["content"] == "x" * 400
    reply(session)
    assert session.find_ending(request_id) == ("completed", "final_answer")
    assert session.find_outcome(request_id)["iterations"] == 1
    recipe = list(session.thread)[-2].payload["recipe"]
    assert recipe["context_policy"] == {"max_input_tokens": budget + 200}
    assert_reproduced(session)


def test_a_second_refusal_is_the_failure() -> None:
    """Typed as it always was; both refusals are facts, and the outcome is the second's."""
    session = begin_small()
    take_turn(session, 400)
    request_id = session.ask("x" * 1_200)
    session.take_event(make_refusal(session))
    session.take_event(make_refusal(session))
    assert session.entry_names[-4:] == ["user", "error", "error", "run"]
    assert session.find_ending(request_id) == ("failed", "context_length_exceeded")
    assert "retried" not in list(session.thread)[-2].payload["details"]


def test_each_run_has_its_own_retry_and_begins_where_the_last_one_ended() -> None:
    """What was learned stays: the next run is not refused for what it now knows, and may be refused for less."""
    session = begin_small()
    take_turn(session, 600)
    session.ask("x" * 400)
    session.take_event(make_refusal(session, limit=900, actual=1_100))
    budget = get_budget(session, session.call)
    reply(session)
    session.ask("and?")
    assert get_budget(session, session.call) == budget
    session.take_event(make_refusal(session, limit=500, actual=budget))
    assert get_budget(session, session.call) < budget
    reply(session)
    other = session.ask("elsewhere", model="local:other")
    assert session.call.context_policy is None or session.call.context_policy.budget != budget
    reply(session)
    assert session.find_ending(other) == ("completed", "final_answer")


def test_a_refusal_that_no_worker_of_today_tells_of_is_final() -> None:
    """As before it could be retried: sessions in flight replay what they did."""
    session = begin_small()
    request_id = session.ask("hello")
    session.take_event(
        Failure(type="context_length_exceeded", message="too long", details={"limit": 10, "actual": 20})
    )
    assert session.find_ending(request_id) == ("failed", "context_length_exceeded")
    assert session.state.settings.learned == {}


@pytest.mark.parametrize("counted", [0, -5, 1, True, "9", 2.5, None, 10**400])
def test_a_count_that_is_none_leaves_nothing_to_try(counted: Any) -> None:
    """Nothing that a provider or a worker sends does harm."""
    session = begin_small()
    request_id = session.ask("hello")
    session.take_event(make_refusal(session, counted=counted))
    assert session.find_ending(request_id)[0] == "failed"


_odd = st.one_of(st.integers(-5, 3_000), st.integers(), st.none(), st.booleans(), st.text(max_size=3), st.floats())


@given(_odd, _odd, st.integers(1, 3_000), st.integers(1, 100_000))
def test_whatever_a_refusal_tells_the_budget_gets_smaller(limit: Any, actual: Any, counted: int, output: int) -> None:
    """It is at least one token, and a tenth less than what was refused; or there is no other attempt."""
    session = begin_small(model_options=ModelOptions(max_output_tokens=output))
    session.ask("hello")
    left = budgets.compute_budget_left(
        get_run(session.state), make_refusal(session, limit=limit, actual=actual, counted=counted)
    )
    assert left is None or 1 <= left <= min(counted * 9 // 10, 1_000)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ({"limit": 800, "actual": 1_000, "counted": 1_000}, (800 - 200) * 9 // 10),
        ({"limit": 800, "actual": 1_600, "counted": 1_000}, (800 - 200) * 9 // 16),
        ({"limit": 800, "counted": 1_000}, (800 - 200) * 9 // 10),
        ({"limit": 5_000, "counted": 900}, 450),
        ({"limit": 300, "actual": 1_000, "counted": 1_000}, 150 * 9 // 10),
        ({"counted": 1_000}, 500),
        ({"limit": 8_000, "actual": 10, "counted": 1_000}, 900),
    ],
)
def test_the_budget_that_a_refusal_leaves(told: dict[str, int], left: int) -> None:
    """The window less the reply, in tokens of ours, a tenth to spare; half where the provider tells too little."""
    session = begin_small()
    session.ask("hello")
    assert budgets.compute_budget_left(get_run(session.state), make_refusal(session, **told)) == left


def test_what_must_fit_and_does_not_fit_any_more_is_the_failure() -> None:
    """The request itself is never truncated: its call fails with the projection's own error."""
    session = begin_small()
    request_id = session.ask("x" * 3_600)
    session.take_event(make_refusal(session, limit=500, actual=1_000))
    with pytest.raises(ContextOverflow, match="request needs 910 tokens and"):
        session.build_context(session.call)
    session.fail("context_overflow")
    assert session.find_ending(request_id) == ("failed", "context_overflow")


def test_a_retry_comes_after_the_time_is_over_no_more() -> None:
    session = begin_small(request_timeout_seconds=10)
    take_turn(session, 500)
    request_id = session.ask("hello")
    session.time = 11
    session.take_event(make_refusal(session))
    assert session.find_ending(request_id) == ("failed", "timeout")


def test_a_retry_within_a_round_of_tools_reads_the_same_results() -> None:
    """Its parent is the call that asked for them, and the round counts once."""
    session = SessionHarness(table=True, model=MODEL, encoding="heuristic", tools=("add",))
    session.ask("add", max_iterations=2)
    session.reply("", "add")
    session.answer_calls("x" * 2_000)
    first = session.call
    session.take_event(make_refusal(session))
    assert (session.call.parent_call_id, session.call.iteration) == (first.parent_call_id, 2)
    assert first.parent_call_id == "call-1"


def test_a_provider_that_counts_more_gets_less() -> None:
    """From the next call on: the policy's budget is divided by the ratio, which the recipe tells."""
    session = begin_small()
    take_turn(session, 300, ratio=1.3)
    assert session.state.settings.learned == {}
    take_turn(session, 500, ratio=1.3)
    ratio = 11 / EIGHTHS
    session.ask("now")
    assert session.state.settings.learned == {MODEL: Learned(eighths=11)}
    assert session.call.token_ratio == ratio
    assert get_budget(session, session.call) == int(1_000 / ratio)
    reply(session, 1.3)
    assert list(session.thread)[-2].payload["recipe"]["token_ratio"] == ratio
    assert_reproduced(session)


@pytest.mark.parametrize("ratio", [0.1, 0.6, 0.97, 1.0, 1.015])
def test_a_provider_that_counts_no_more_changes_nothing(ratio: float) -> None:
    """Budgets are only ever made tighter, and a message framed a little otherwise is no difference."""
    session = begin_small()
    for _ in range(6):
        take_turn(session, 300, ratio)
    assert session.state.settings.learned == {}
    session.ask("now")
    assert (session.call.context_policy, session.call.token_ratio) == (None, None)


def test_a_short_context_tells_nothing() -> None:
    """What a provider adds to every prompt would look like a ratio."""
    session = begin_small()
    take_turn(session, 100, ratio=4.0)
    assert session.state.settings.learned == {}


def test_a_ratio_is_steady() -> None:
    """It goes up at once and down when it is clearly lower: between, the policy's hash stays as it is."""
    policy = SMALL.complete()
    learned: Mapping[str, Learned] = {}
    hashes = []
    for theirs in (1_000, 1_260, 1_200, 1_150, 1_255, 1_130, 1_040, 1_010):
        learned = budgets.learn_ratio(learned, MODEL, policy, 1_000, Usage(input_tokens=theirs))
        hashes.append(learned[MODEL].eighths if learned else EIGHTHS)
    assert hashes == [8, 10, 10, 10, 10, 10, 10, 8]


def test_a_ratio_has_an_end() -> None:
    learned = budgets.learn_ratio({}, MODEL, SMALL, 1_000, Usage(input_tokens=10**15))
    assert learned[MODEL].ratio == 4
    assert Learned(eighths=32).reduce(3) == 1


def test_who_sets_a_policy_starts_anew() -> None:
    """What was refused or counted before is forgotten; another change of configuration leaves it."""
    session = begin_small()
    take_turn(session, 800, ratio=1.5)
    learned = session.state.settings.learned
    assert learned
    session.configure(model_options=ModelOptions(seed=1))
    assert session.state.settings.learned == learned
    session.configure(context_policy=ContextPolicy(max_messages=50))
    assert session.state.settings.learned == {}


def test_what_was_learned_is_carried_and_bounded() -> None:
    """To the next run of the workflow; of many models the newest."""
    session = begin_small()
    take_turn(session, 800, ratio=1.5)
    assert carry_over(session).state.settings.learned == session.state.settings.learned
    learned: Any = {}
    for number in range(40):
        learned = budgets.learn_refusal(learned, f"local:m{number % 20}", 100 + number)
    assert list(learned) == [f"local:m{number}" for number in range(4, 20)]
    assert learned["local:m4"] == Learned(budget=124)
    assert budgets.learn_refusal(learned, "local:m4", 500) == learned


def refuse(*ids: str, reason: str = "Could not process image") -> SentRequest:
    """What a provider has received at last, without these images."""
    refused = Refused(kind="media", ids=ids, reason=reason)
    return SentRequest(digest="d", encoder="openai-chat/1", refused=(refused,) if ids else ())


def test_later_calls_are_without_what_was_refused_and_the_thread_says_so_once() -> None:
    session = begin_small()
    session.ask("look")
    assert not session.call.refused
    reply(session, request=refuse("a", "b"))
    session.ask("and now?")
    assert [group.ids for group in session.call.refused] == [("a", "b")]
    reply(session, request=refuse("b", "c"))
    session.ask("still?")
    assert [group.ids for group in session.call.refused] == [("a", "b", "c")]
    reply(session, request=refuse())
    errors = [entry.read(ErrorPayload) for entry in session.thread.filter_by_kind("error")]
    assert [(error.type, error.message) for error in errors] == [("item_refused", "Could not process image")] * 2
    assert [error.refused.ids for error in errors if error.refused] == [("a", "b"), ("c",)]
    outcomes = [entry.payload for entry in session.thread.filter_by_kind("run")]
    answers = [session.thread[outcome["answer_seq"]].payload["content"] for outcome in outcomes]
    assert answers == ["fine"] * 3


def test_what_was_refused_is_the_models_and_is_carried_and_bounded() -> None:
    """Another model gets it; a new policy changes nothing of it."""
    session = begin_small()
    session.ask("look")
    reply(session, request=refuse("a"))
    refused = session.state.settings.refused
    assert carry_over(session).state.settings.refused == refused != {}
    session.configure(context_policy=ContextPolicy(max_messages=50))
    assert session.state.settings.refused == refused
    session.ask("and you?", model="local:other")
    session.take_event(make_profile("local:other"))
    assert session.call.refused == ()
    many: Any = {}
    for number in range(3 * budgets.MAX_REFUSED):
        many = budgets.learn_refused(many, MODEL, [Refused(kind="media", ids=(str(number),), reason="no")])
    assert sum(len(group.ids) for group in many[MODEL]) == budgets.MAX_REFUSED
    assert many[MODEL][-1].ids[-1] == str(3 * budgets.MAX_REFUSED - 1)


@examples(40)
@given(
    st.lists(
        st.tuples(st.integers(1, 260), st.sampled_from([0.5, 1.0, 1.1, 1.3, 2.0, 9.0]), st.booleans()), max_size=25
    )
)
def test_contexts_under_a_calibrated_budget_are_made_again(turns: list[tuple[int, float, bool]]) -> None:
    """For any counts and refusals of the provider, every context keeps to its budget and follows from its recipe.

    Between two calls of the same policy the earlier context is the beginning of the later, unless a truncation came
    between.
    """
    session = begin_small()
    shown: list[tuple[str, Any, list[Any]]] = []
    for tokens, ratio, is_refused in turns:
        session.ask("x" * 4 * tokens)
        if is_refused:
            session.take_event(Failure(type="context_length_exceeded", message="", details={"counted": 700}))
        try:
            now = session.build_context(session.call)
        except ContextOverflow:
            session.fail("context_overflow")
            continue
        assert now.meta.estimated_tokens <= get_budget(session, session.call)
        if shown and shown[-1][:2] == (now.meta.policy_hash, now.meta.epoch):
            assert now.messages[: len(shown[-1][2])] == shown[-1][2]
        shown.append((now.meta.policy_hash, now.meta.epoch, now.messages))
        reply(session, ratio)
    assert_reproduced(session)
