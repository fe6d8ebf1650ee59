"""The epoch window: contexts that begin alike, so that what a provider has read once it need not read again."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import ContextOverflow, InvalidInput
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.blocks import MISSING_RESULT
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, project
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import Step, Turn, conversations, histories, policies, write
from tests.support.threads import Writer, assistant_says, make_recipe, project_thread, user_says


def epochs(thread: Thread, policy: ContextPolicy, lane: str = DEFAULT_LANE) -> list[tuple[int, Projection]]:
    """The contexts at every seq at which no tool call waits for its result, as none does when a model is called."""
    contexts = []
    for seq in range(thread.rev):
        inputs = ProjectionInput(thread, policy, context_ref=lane, at_seq=seq, encoding="heuristic")
        with suppress(ContextOverflow):
            context = project(inputs)
            if not any(message["content"] == MISSING_RESULT for message in context.messages):
                contexts.append((seq, context))
    return contexts


@examples(100)
@given(
    steps=st.lists(histories | conversations, min_size=1, max_size=3).map(
        lambda some: [step for steps in some for step in steps]
    ),
    policy=policies.filter(lambda policy: policy.window == "epoch"),
)
@pytest.mark.slow
def test_contexts_of_an_epoch_are_prefixes_of_one_another(steps: list[Step], policy: ContextPolicy) -> None:
    """Unless the epoch, an operation, a summary, a configuration or a late result comes between them."""
    thread = write(steps)
    before: tuple[int, Projection] | None = None
    for seq, context in epochs(thread, policy):
        if before:
            between = thread.slice(before[0] + 1, seq)
            kinds = {"late" if entry.payload.get("late") else entry.kind for entry in between}
            events = kinds & {"config", "summary", "ai_context_operation", "late"}
            same = before[1].meta.epoch == context.meta.epoch
            if same and not events and before[1].meta.summary_used == context.meta.summary_used:
                assert context.messages[: len(before[1].messages)] == before[1].messages
        before = (seq, context)


@pytest.mark.parametrize("low_water", [0.2, 0.5, 0.8])
def test_the_window_begins_anew_only_when_it_overflows(low_water: float) -> None:
    """Then it is at its low-water mark, and grows until it is full again."""
    policy = ContextPolicy(
        window="epoch", low_water=low_water, max_input_tokens=1000, reserve_output_tokens=0, keep_last_turns=1
    )
    thread = write([Turn(DEFAULT_LANE, "a question", [], "an answer") for _ in range(300)])
    contexts = epochs(thread, policy)
    sizes = [context.meta.estimated_tokens for _, context in contexts]
    begun = [
        index
        for index in range(1, len(contexts))
        if contexts[index][1].meta.epoch != contexts[index - 1][1].meta.epoch
    ]
    turn = thread[0].tokens + thread[1].tokens
    assert begun, "it overflowed"
    for index in begun:
        assert sizes[index - 1] > 1000 - 2 * turn
        assert 1000 * low_water - 2 * turn < sizes[index] <= 1000 * low_water + 2 * turn
    spans = [later - earlier for earlier, later in pairwise(begun)]
    assert min(spans) * turn / 2 > 1000 * (1 - low_water) - 4 * turn


def test_what_the_next_context_shares_is_told() -> None:
    """All of the call before, in the same epoch; nothing after a truncation or a change of what shapes contexts."""
    writer = Writer()
    policy = ContextPolicy(window="epoch", max_input_tokens=400, reserve_output_tokens=0)
    writer.config(context_policy=policy)
    shared = []
    for turn in range(30):
        writer.message(user_says(f"question {turn}"), run=f"run-{turn}")
        context = project_thread(writer.thread, policy, provider="openai")
        shared.append((context.meta.epoch, context.meta.shared_prefix_tokens))
        recipe_json = make_recipe(
            context.meta.basis_last_seq,
            epoch=list(context.meta.epoch or ()),
            policy_hash=context.meta.policy_hash,
            input_tokens=context.meta.estimated_tokens,
        )
        writer.commit(
            "ai_message",
            {"context_ref": DEFAULT_LANE, **assistant_says("fine"), "recipe": recipe_json},
            run_id=f"run-{turn}",
            call_id=f"call-{turn}",
        )
    for (before, _), (epoch, prefix) in pairwise(shared):
        assert (prefix == 0) == (before != epoch)
    assert len({epoch for epoch, _ in shared}) > 2
    writer.config(context_policy=policy, model="openai:other")
    writer.message(user_says("another"), run="run-x")
    assert project_thread(writer.thread, policy, provider="openai").meta.shared_prefix_tokens == 0


@pytest.mark.parametrize("last", ["config", "summary"])
def test_what_came_right_before_a_call_shaped_it_already(last: str) -> None:
    """The next context shares all of the call that had the same configuration and summary."""
    writer = Writer()
    policy = ContextPolicy(window="epoch", max_input_tokens=400, reserve_output_tokens=0)
    writer.config(context_policy=policy)
    before = writer.message(user_says("before"), run="run-1")
    writer.message(user_says("now"), run="run-2")
    if last == "config":
        writer.config(context_policy=policy, model="openai:other")
    else:
        writer.summary(before.seq)
    meta = project_thread(writer.thread, policy, provider="openai").meta
    assert meta.basis_last_seq == writer.thread.last_seq
    recipe = make_recipe(
        meta.basis_last_seq, epoch=list(meta.epoch or ()), policy_hash=meta.policy_hash, input_tokens=77
    )
    writer.commit("ai_message", {"context_ref": DEFAULT_LANE, **assistant_says("fine"), "recipe": recipe})
    writer.message(user_says("again"), run="run-3")
    assert project_thread(writer.thread, policy, provider="openai").meta.shared_prefix_tokens == 77


def test_an_epoch_goes_by_the_recorded_counts() -> None:
    """A policy that asks for another measure is refused, with what to do."""
    with pytest.raises(InvalidInput, match="token_estimator"):
        ContextPolicy(window="epoch", token_estimator="heuristic").ensure_usable()


def test_a_projections_cost_follows_the_window() -> None:
    """As many blocks are looked at in a long thread as in a short one."""
    policy = ContextPolicy(window="epoch", max_input_tokens=1000, reserve_output_tokens=0)
    included = []
    for turns in (100, 1000):
        thread = write([Turn(DEFAULT_LANE, "a question", [], "an answer") for _ in range(turns)])
        included.append(project_thread(thread, policy).meta.entries_included)
    assert max(included) < 2 * 1000 / 10
