"""Re-projection: a session's calls as they were, and as they would have been under other policies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.comparison import AS_IT_WAS, Trial, compare_policies
from clew.errors import ContextOverflow, InvalidInput, InvalidTokenBudget
from clew_workflows.contract.outcomes import Price
from clew_workflows.contract.policy import ClearToolResults, ContextPolicy
from clew_workflows.thread.context.blocks import Rendering
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import Step, histories, policies, write
from tests.support.recorded import COST, MODEL, RecordedSession, record_replies
from tests.support.threads import CALCULATOR, OTHER_PAYLOADS, assistant_says, user_says

PRICES = (Price(input=1, output=1000, cached_input=0),)


class Session(RecordedSession):
    """A session that is compared with itself under other policies."""

    def compared(self, **policies: ContextPolicy) -> list[Trial]:
        return compare_policies(self.thread, policies)


def test_the_first_column_is_the_session_as_it_was() -> None:
    """Its tokens are the recorded ones; the provider's report stands beside them."""
    session = Session(ContextPolicy(max_input_tokens=1000, reserve_output_tokens=0), PRICES).turns(12)
    (trial,) = session.compared()
    assert trial.name == AS_IT_WAS
    assert (trial.calls, trial.overflows) == (24, 0)
    assert trial.input_tokens == sum(call.meta.estimated_tokens for call in session.calls)
    assert trial.truncated == sum(call.meta.truncated for call in session.calls) > 0
    reported = {"input_tokens": 2400, "cached_tokens": 960, "cached_share": 0.4}
    assert trial.as_dict()["reported"] == reported | {"cost_usd": 24 * COST}
    assert (trial.left_out_most > trial.left_out_mean > 0, trial.policy) == (True, {})


def test_an_epoch_is_predicted_to_be_cached_as_its_recipes_tell() -> None:
    """All of the call before, unless the window was truncated: then what comes before the messages."""
    policy = ContextPolicy(window="epoch", max_input_tokens=1500, reserve_output_tokens=0)
    session = Session(policy).turns(30)
    around = session.calls[0].tools_tokens + session.calls[0].blocks[0].tokens
    assert around > 0
    shared = [call.meta.shared_prefix_tokens or around for call in session.calls[1:]]
    assert shared.count(around) > 1, "it was truncated"
    epoch, sliding = session.compared(sliding=ContextPolicy(window="sliding"))
    assert epoch.cached_tokens == sum(shared)
    assert sliding.cached_tokens < epoch.cached_tokens


def test_a_policy_lies_over_the_one_in_force_at_each_call() -> None:
    """It overlays field by field: a field that it does not set stays as the session or the request set it."""
    session = Session(ContextPolicy(max_input_tokens=4000, keep_last_turns=0), system_prompt=None).turns(8)
    session.writer.config(context_policy=ContextPolicy(max_input_tokens=3000))
    session.writer.message(user_says("again"), run="run-x")
    session.call(assistant_says("fine"), run="run-x", context_policy={"max_messages": 2})
    trials = session.compared(same=ContextPolicy(), kinds=ContextPolicy(include_kinds=("message",)))
    as_it_was, same, kinds = trials
    assert (same.input_tokens, same.cached_tokens) == (as_it_was.input_tokens, as_it_was.cached_tokens)
    assert kinds.policy == {"include_kinds": ["message"]}
    last = session.calls[-1]
    assert last.meta.policy_hash == ContextPolicy(max_input_tokens=3000, max_messages=2).hash
    lonely = compare_policies(Thread(session.thread.slice(0, session.thread.last_seq - 1)), {})[0]
    assert as_it_was.input_tokens - lonely.input_tokens == last.meta.estimated_tokens


def test_calls_that_would_fail_are_counted_and_named() -> None:
    """They count for nothing else; a request that did fail so counts for the session as it was."""
    session = Session(ContextPolicy()).turns(2)
    session.writer.message(user_says("much " * 400), run="run-x")
    session.call(assistant_says("fine"), run="run-x")
    session.writer.commit("error", OTHER_PAYLOADS["error"] | {"type": ContextOverflow.type}, run_id="run-y")
    session.writer.commit("error", OTHER_PAYLOADS["error"], run_id="run-z")
    as_it_was, tight = session.compared(tight=ContextPolicy(max_input_tokens=400, reserve_output_tokens=0))
    assert (as_it_was.overflows, as_it_was.overflowing) == (1, ())
    assert (tight.calls, tight.overflows, tight.overflowing) == (4, 1, ("call-5",))


def test_what_clearing_and_summaries_do_is_counted() -> None:
    """In how many calls each of them was at work."""
    session = Session(ContextPolicy()).turns(4)
    session.writer.summary(session.thread.last_seq)
    session.turns(1)
    clearing = ContextPolicy(clear_tool_results=ClearToolResults(keep=0))
    as_it_was, cleared, plain = session.compared(cleared=clearing, plain=ContextPolicy(summarization="none"))
    assert (as_it_was.cleared, as_it_was.summaries) == (0, 2)
    assert cleared.cleared == 6
    assert (plain.summaries, plain.left_out_most) == (0, 0)
    assert as_it_was.left_out_most == 16


def test_pins_that_are_not_shown_are_lost() -> None:
    """Each pin is listed once, however many contexts do not have it."""
    session = Session(ContextPolicy()).turns(3)
    tools = next(entry.seq for entry in session.thread if entry.payload.get("tool_calls"))
    session.writer.pin(1, tools)
    session.turns(3)
    talk = {"talk": ContextPolicy(include_kinds=("message",))}
    full, truncated = compare_policies(session.thread, talk)
    assert (full.lost_pins, truncated.lost_pins) == ((), (tools,))


def test_nothing_is_cached_across_lanes_models_and_tools() -> None:
    """A provider's cache goes by all that comes first."""
    session = Session(ContextPolicy())
    for lane, config, model in (
        (DEFAULT_LANE, {}, MODEL),
        ("draft", {}, MODEL),
        (DEFAULT_LANE, {}, "openai:other"),
        (DEFAULT_LANE, {"tools": [CALCULATOR, {**CALCULATOR, "name": "other"}]}, "openai:other"),
    ):
        if config:
            session.writer.config(**config)
        session.writer.message(user_says("a question"), lane)
        session.call(assistant_says("fine"), lane, model=model)
        assert session.compared()[0].cached_tokens == 0
    session.writer.message(user_says("a question"))
    session.call(assistant_says("fine"), model="openai:other")
    assert session.compared()[0].cached_tokens == session.calls[-2].meta.estimated_tokens


def test_costs_are_by_the_prices_that_the_calls_tell() -> None:
    """Input, cached input and the recorded output are priced; the reported cost is the recorded one."""
    session = Session(ContextPolicy(), PRICES).turns(3)
    (trial,) = session.compared()
    assert trial.cost_usd is not None
    assert trial.cost_usd * 1e6 == pytest.approx(trial.input_tokens - trial.cached_tokens + 6 * 10_000)
    assert trial.reported is not None
    assert trial.reported.cost_usd == 6 * COST


def test_costs_are_by_other_prices_where_they_are_given() -> None:
    """They price the contexts and the providers' reports; a model without prices has no cost."""
    session = Session(ContextPolicy(), PRICES).turns(3)
    (trial,) = session.compared()
    (other,) = compare_policies(session.thread, {}, (Price(input=0.5, output=500, cached_input=0),))
    assert other.cost_usd == pytest.approx((trial.cost_usd or 0) / 2, abs=1e-6)
    assert other.reported
    assert other.reported.cost_usd == pytest.approx(6 * (60 + 10_000) / 2e6)
    (unknown,) = compare_policies(session.thread, {}, ())
    assert "cost_usd" not in unknown.as_dict()
    assert "cost_usd" not in unknown.as_dict()["reported"]


def test_where_one_call_has_no_prices_there_is_no_sum() -> None:
    """Part of a cost would be taken for all of it."""
    session = Session(ContextPolicy(), PRICES).turns(1)
    session.prices = ()
    (trial,) = session.turns(1).compared()
    assert (trial.cost_usd, trial.reported and trial.reported.cost_usd) == (None, None)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (ContextPolicy(max_input_tokens=100), InvalidTokenBudget),
        (ContextPolicy(window="epoch"), InvalidInput),
        (ContextPolicy(projector="nobody's"), InvalidInput),
    ],
)
def test_a_policy_that_cannot_lie_over_another_is_named(policy: ContextPolicy, error: type[Exception]) -> None:
    """The error is the policy's own, with its name before it."""
    session = Session(ContextPolicy(token_estimator="heuristic")).turns(1)
    with pytest.raises(error, match=r"^policy other: "):
        session.compared(good=ContextPolicy(), other=policy)


@examples(100)
@given(
    steps=st.lists(histories, min_size=1, max_size=2).map(lambda some: [step for steps in some for step in steps]),
    policy=policies.map(ContextPolicy.complete),
)
def test_each_call_is_what_projecting_it_alone_gives(steps: list[Step], policy: ContextPolicy) -> None:
    """For any history, the sums equal those over contexts that are built one by one from prefixes of the thread."""
    thread = record_replies(write(steps))
    contexts: list[tuple[str, Projection]] = []
    overflows = 0
    for entry in thread:
        if "recipe" in entry.payload:
            prefix, lane = Thread(thread.slice(0, entry.seq - 1)), entry.payload["context_ref"]
            try:
                contexts.append((lane, build_context(prefix, context_ref=lane, policy=policy, model=MODEL)))
            except ContextOverflow:
                overflows += 1
    trial = compare_policies(thread, {"policy": policy})[1]
    assert (trial.calls, trial.overflows) == (len(contexts), overflows)
    assert trial.input_tokens == sum(context.meta.estimated_tokens for _, context in contexts)
    assert trial.truncated == sum(context.meta.truncated for _, context in contexts)
    least = most = 0
    for wanted in {lane for lane, _ in contexts}:
        for before, now in pairwise([context for lane, context in contexts if lane == wanted]):
            if before.tool_spec == now.tool_spec and now.messages[: len(before.messages)] == before.messages:
                least += before.meta.estimated_tokens
            most += now.meta.estimated_tokens
    assert least <= trial.cached_tokens <= most


def test_the_work_follows_the_calls_and_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing a call takes the same work in a long session as in a short one."""
    rendered = 0
    really = Rendering.render_group

    def counting(self: Rendering, *args: Any) -> Any:
        nonlocal rendered
        rendered += 1
        return really(self, *args)

    monkeypatch.setattr(Rendering, "render_group", counting)
    costs = []
    for turns in (50, 400):
        session = Session(ContextPolicy(max_input_tokens=1000, reserve_output_tokens=0)).turns(turns)
        rendered = 0
        session.compared(epoch=ContextPolicy(window="epoch"))
        costs.append(rendered / turns)
    assert costs[1] < 1.3 * costs[0]
