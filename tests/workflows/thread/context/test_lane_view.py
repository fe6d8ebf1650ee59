"""Withdrawn messages, and corrected answers with their corrections: contexts are as if they had never been."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import Archived, ContextOverflow
from clew_workflows.contract.payloads import OperationPayload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.archived import load_thread, retain
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput
from clew_workflows.thread.lane import Lane
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import LANES, Corrected, Step, Turn, Withdrawn, histories, policies, write
from tests.support.threads import Back, Writer, assistant_says, user_says

SOME = st.lists(histories, min_size=1, max_size=3).map(lambda some: [step for steps in some for step in steps])

Left = Withdrawn | Corrected
LEFT: st.SearchStrategy[Left] = st.one_of(
    st.builds(Withdrawn, st.sampled_from(LANES[:2]), st.integers(1, 2), st.just(True)),
    st.builds(
        Corrected,
        st.sampled_from(LANES[:2]),
        st.lists(st.integers(1, 2), min_size=1, max_size=3),
        st.sampled_from(("", "entry", "late")),
        st.sampled_from((None, "{}")),
    ),
)


def insert(steps: list[Step], at: list[tuple[int, Left]], *, sent: bool) -> Thread:
    """Write a history with messages that contexts leave out, or with entries that no context shows."""
    steps = list(steps)
    for number, (index, left) in enumerate(sorted(at, key=lambda pair: pair[0])):
        steps.insert(index + number, left._replace(sent=sent))
    return write(steps)


def show(thread: Thread, lane: str, policy: ContextPolicy, at_seq: int | None = None) -> object:
    """A context as its model would see it, or the reason why it cannot be built."""
    try:
        context = build_context(thread, context_ref=lane, policy=policy, at_seq=at_seq)
    except (ContextOverflow, Archived) as error:
        return type(error).__name__
    return context.messages, context.meta.estimated_tokens, context.meta.needs_summary, context.meta.entries_included


def is_settled(thread: Thread, seq: int) -> bool:
    """Whether the messages that the thread has at a seq, and that contexts leave out later, were left out by then."""
    return not any(
        entry.payload["operation"]["from_seq"] <= seq < entry.seq
        for entry in thread.filter_by_kind("ai_context_operation")
        if entry.payload["operation"]["type"] in ("withdraw", "corrected")
    )


@examples(60)
@given(
    steps=SOME,
    at=st.lists(st.tuples(st.integers(0, 12), LEFT), min_size=1, max_size=3),
    policy=policies.map(ContextPolicy.complete),
    lane=st.sampled_from((*LANES[:2] * 2, *LANES)),
    data=st.data(),
)
def test_no_context_shows_withdrawn_messages_or_corrections(
    steps: list[Step], at: list[tuple[int, Left]], policy: ContextPolicy, lane: str, data: st.DataObject
) -> None:
    """Neither of the complete thread, nor of one that retains or loads a part of it."""
    thread, expected = insert(steps, at, sent=True), insert(steps, at, sent=False)
    settled = [seq for seq in range(thread.rev) if is_settled(thread, seq)]
    now = data.draw(st.sampled_from(settled))
    context = show(expected, lane, policy, now)
    assert show(thread, lane, policy, now) == context
    loaded = asyncio.run(load_thread(Back(thread, now), lane, lambda _in_force: policy))
    assert show(loaded, lane, policy) == context
    first = data.draw(st.integers(0, now + 1))
    retained = retain(Thread(thread.slice(0, now)), first, {lane: [policy]}, 10_000_000, now)
    reduced = Thread(thread.slice(first, now), first, retained)
    assert show(reduced, lane, policy, now) == context
    for entry in thread.slice(now + 1, thread.last_seq):
        reduced.append(entry)
    assert show(reduced, lane, policy) in (show(expected, lane, policy), "Archived")


def test_a_message_that_is_archived_before_it_is_withdrawn_leaves_its_context_too() -> None:
    writer = Writer().talk(user_says("a"), user_says("b"), run="run-1")
    policy = ContextPolicy(max_input_tokens=400, reserve_output_tokens=0).complete()
    retained = retain(writer.thread, 2, {"default": [policy]}, 10_000_000)
    operation = writer.operate("withdraw", from_seq=1)
    reduced = Thread([operation], 2, retained)
    assert [message["content"] for message in build_context(reduced).messages] == ["a"]


def test_a_withdrawal_of_all_that_the_user_said_costs_no_context() -> None:
    """The archived part has no user's message, so that the context needs none of it."""
    writer = Writer().talk(*[assistant_says("news")] * 20)
    policy = ContextPolicy(max_input_tokens=40, reserve_output_tokens=0).complete()
    reduced = Thread(
        (), writer.thread.rev, retain(writer.thread, writer.thread.rev, {"default": [policy]}, 10_000_000)
    )
    reduced.append(writer.message(user_says("a question"), run="run-1"))
    reduced.append(writer.operate("withdraw", from_seq=20))
    assert show(reduced, "default", policy) == show(writer.thread, "default", policy) != "Archived"


@pytest.mark.parametrize("left", [Withdrawn("default", 1, sent=True), Corrected("default", [1, 2], "", "{}")])
def test_what_was_left_out_before_the_archive_was_left_costs_no_context(left: Left) -> None:
    """What the thread retains was chosen without it: the newest run is the one before, and it is all there."""
    talk = [Turn("default", text, [], None) for text in ("a", "b" * 400, "c")]
    thread = write([*talk, left])
    policy = ContextPolicy(max_input_tokens=50, reserve_output_tokens=0).complete()
    for first in range(1, thread.rev + 1):
        retained = retain(thread, first, {"default": [policy]}, 10_000_000)
        reduced = Thread(thread.slice(first, thread.last_seq), first, retained)
        assert show(reduced, "default", policy) == show(thread, "default", policy) != "Archived"


def test_the_size_of_a_lane_includes_its_snapshot() -> None:
    """Its messages and their recorded tokens count beside those that follow it."""
    writer = Writer().talk(user_says("before"))
    snapshot = writer.replace([user_says("a"), assistant_says("b")])
    after = writer.message(user_says("c"))
    stored = snapshot.read(OperationPayload).snapshot
    assert stored
    assert stored.tokens
    assert LaneView(ProjectionInput(writer.thread, ContextPolicy())).size == (3, sum(stored.tokens) + after.tokens)


def test_a_lane_has_no_withdrawn_messages() -> None:
    """Its indexes are those of the lane without them. Late results of older rounds stay."""
    writer = Writer().talk(user_says("a"))
    lane = writer.thread.get_lane("default")
    assert lane is not None
    before = (list(lane.message_seqs), list(lane.cumulative_tokens), list(lane.turn_starts), len(lane.groups))
    writer.talk(user_says("b"), user_says("c"), run="run-1")
    writer.operate("withdraw", from_seq=1)
    assert (lane.message_seqs, lane.cumulative_tokens, lane.turn_starts, len(lane.groups)) == before
    assert (lane.layers.withdrawn, lane.find_group(1)) == (((1, 3),), None)
    writer.talk(user_says("d"), run="run-1")
    assert lane.run_starts == [0, 4], "the run begins with the first message of it that is left"
    rebuilt = Lane(layer_history=[lane.layers])
    for entry in writer.thread:
        rebuilt.add(entry)
    assert rebuilt.message_seqs == [0, 4]


def test_blocks_are_measured_with_all_that_comes_after_them() -> None:
    """Those of a snapshot, too."""
    writer = Writer()
    writer.replace([user_says("a question"), assistant_says("an answer")])
    view = LaneView(ProjectionInput(writer.talk(user_says("and now?")).thread, ContextPolicy()))
    measured = [(messages, tokens) for _, messages, tokens in view.iterate_measured_blocks()]
    sizes = accumulate(block.tokens for block in view.iterate_blocks())
    assert measured == list(enumerate(sizes, 1))
    assert measured[-1] == view.size
