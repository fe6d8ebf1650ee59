"""A thread that has parted with its past answers as the whole one would, or says that it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.context.contexts import build_context
from clew.context.projection import Projection
from clew.context.retention import retain
from clew.contract.policy import ClearToolResults, ContextPolicy
from clew.errors import Archived, ContextOverflow
from clew.thread.entries import DEFAULT_LANE
from clew.thread.thread import Retained, Thread
from tests.support.threads import (
    LANES,
    OpenCalls,
    Pinned,
    Steered,
    Step,
    Turn,
    Writer,
    assistant_calls,
    assistant_says,
    histories,
    policies,
    tool_returns,
    user_says,
    write,
)

PLENTY = 10_000_000


def answer(thread: Thread, policy: ContextPolicy, lane: str, at_seq: int | None = None) -> Projection | str:
    """A context, or why there is none."""
    try:
        return build_context(thread, context_ref=lane, at_seq=at_seq, policy=policy.complete())
    except ContextOverflow as error:
        return str(error)
    except Archived:
        return "archived"


def without(whole: Thread, now: int, first_seq: int, retained: Retained) -> Thread:
    """The thread as it was at a time, without its past."""
    return Thread(whole.slice(first_seq, now), first_seq, retained)


def test_a_pin_of_what_is_no_message_of_the_lane_hides_nothing() -> None:
    """It is in another lane: contexts are as if it were not pinned, also right after what is archived."""
    tools, other = Turn("default", "", [1], None), Steered("draft", "")
    whole = write([tools, other, Pinned("default", "pin", [0]), *[Turn("default", "", [], None)] * 12])
    policy = ContextPolicy(max_input_tokens=100, reserve_output_tokens=0, summarization="none")
    last = whole.last_seq
    here = without(whole, last, 2, retain(whole, 2, {"default": [policy]}, PLENTY, last))
    assert answer(here, policy, "default") == answer(whole, policy, "default")


def test_results_that_are_missing_do_not_shorten_what_an_epoch_reaches() -> None:
    """An epoch is measured by what was said: a call without its result has less of that than a context shows."""
    whole = write([Turn("default", "", [1, 3], None), OpenCalls("default", 3, None), Turn("default", "", [1], None)])
    policy = ContextPolicy(
        max_input_tokens=300, reserve_output_tokens=0, keep_last_turns=0, window="epoch", low_water=0.1
    )
    upto = whole.last_seq - 1
    here = without(whole, upto, 1, retain(whole, 1, {"default": [policy]}, PLENTY, upto))
    assert answer(here, policy, "default") == answer(whole, policy, "default", upto)


@settings(max_examples=300)
@given(
    steps=st.lists(histories, min_size=1, max_size=3).map(lambda some: [step for steps in some for step in steps]),
    both=st.tuples(policies, policies),
    lane=st.sampled_from(LANES),
    room=st.sampled_from((0, 1000, PLENTY, PLENTY)),
    data=st.data(),
)
@pytest.mark.slow
def test_it_answers_as_the_whole_thread_or_not_at_all(
    steps: list[Step], both: tuple[ContextPolicy, ContextPolicy], lane: str, room: int, data: st.DataObject
) -> None:
    """Wherever the cuts are, however often, no context is ever another than the whole thread's."""
    policy = both[0]
    whole = write(steps)
    here, first = Thread(), 0
    for now in sorted(data.draw(st.lists(st.integers(0, whole.last_seq), min_size=1, max_size=2))):
        here = Thread((*here, *whole.slice(here.rev, now)), here.first_seq, here.retained)
        first = data.draw(st.integers(first, max(now + 1, first)))
        upto = data.draw(st.integers(max(first - 1, here.retained.upto, 0), now))
        before = answer(here, policy, lane, upto)
        here = without(whole, now, first, retain(here, first, {lane: [policy]}, room, upto))
        if room == PLENTY:
            assert answer(here, policy, lane, upto) == before
    for entry in whole.slice(here.rev, whole.last_seq):
        here.append(entry)
    for at_seq in (None, *range(max(first - 1, 0), whole.rev)):
        for some_policy in both:
            for name in LANES:
                mine = answer(here, some_policy, name, at_seq)
                assert mine in (answer(whole, some_policy, name, at_seq), "archived")


def test_what_is_kept_follows_the_policy_and_not_the_thread() -> None:
    """Of a long thread as much is kept as of a short one, and the next context is made of it."""
    policy = ContextPolicy(max_input_tokens=400, reserve_output_tokens=0)
    sizes = []
    for turns in (50, 500):
        whole = write([Turn(DEFAULT_LANE, f"question {n}", [1], "an answer") for n in range(turns)])
        retained = retain(whole, whole.rev, {DEFAULT_LANE: [policy]}, PLENTY)
        here = without(whole, whole.last_seq, whole.rev, retained)
        assert answer(here, policy, DEFAULT_LANE) == answer(whole, policy, DEFAULT_LANE)
        assert answer(here, replace_budget(policy, 8000), DEFAULT_LANE) == "archived"
        sizes.append(len(retained.entries))
    assert max(sizes) - min(sizes) <= 2


def test_what_will_be_cleared_does_not_hide_what_is_before_it() -> None:
    """Once the newest results are old the window reaches further back than now, and what is there has been kept."""
    rule = ClearToolResults(keep=4)
    policy = ContextPolicy(max_input_tokens=800, reserve_output_tokens=0, clear_tool_results=rule)
    writer = Writer()
    for number in range(40):
        writer.talk(user_says(f"question {number}"), assistant_says("fine"))
    writer.message(user_says("look"))
    for number in range(4):
        writer.talk(assistant_calls(f"tool-{number}"), tool_returns(f"tool-{number}", "word " * 120))
    first = writer.thread.rev
    retained = retain(writer.thread, first, {DEFAULT_LANE: [policy]}, PLENTY)
    here = Thread((), first, retained)
    for number in range(4):
        later = (
            assistant_says("well"),
            user_says("again"),
            assistant_calls(f"late-{number}"),
            tool_returns(f"late-{number}", "4"),
        )
        for message in later:
            here.append(writer.message(message))
        assert answer(here, policy, DEFAULT_LANE) == answer(writer.thread, policy, DEFAULT_LANE)
    assert "question 38" in str(answer(here, policy, DEFAULT_LANE))


def test_what_is_pinned_is_kept_as_far_as_there_is_room() -> None:
    """What has none is said to be in the archive, so that it is fetched, and nothing else is amiss."""
    policy = ContextPolicy(max_input_tokens=4000, reserve_output_tokens=0)
    writer = Writer()
    writer.thread = write([Turn(DEFAULT_LANE, f"question {n} " + "x" * 900, [], "an answer") for n in range(30)])
    writer.pin(0, 2)
    whole = writer.thread
    for room, expected in ((PLENTY, (0, 2)), (0, ())):
        retained = retain(whole, whole.rev, {DEFAULT_LANE: [policy]}, room)
        assert retained.gaps[DEFAULT_LANE].pinned == expected
        here = without(whole, whole.last_seq, whole.rev, retained)
        full = answer(whole, policy, DEFAULT_LANE)
        assert answer(here, policy, DEFAULT_LANE) == (full if room else "archived")


def test_all_that_the_newest_runs_user_said_is_kept() -> None:
    """As far as it has room; the rest is said to be in the archive, so that it is fetched."""
    policy = ContextPolicy(max_input_tokens=2000, reserve_output_tokens=0)
    writer = Writer().talk(user_says("before"), assistant_says("yes"), run="r1")
    for number in range(20):
        writer.talk(
            user_says(f"correction {number}"),
            assistant_calls(f"t{number}"),
            tool_returns(f"t{number}", "x" * 900),
            run="r2",
        )
    whole = writer.thread
    for room, expected in ((PLENTY, answer(whole, policy, DEFAULT_LANE)), (5000, "archived")):
        retained = retain(whole, whole.rev, {DEFAULT_LANE: [policy]}, room)
        here = without(whole, whole.last_seq, whole.rev, retained)
        assert answer(here, policy, DEFAULT_LANE) == expected
    assert "correction 7" in str(answer(whole, policy, DEFAULT_LANE))
    for message in (user_says("another"), assistant_says("well")):
        here.append(writer.message(message, run="r3"))
    assert answer(here, replace_budget(policy, 40), DEFAULT_LANE) == answer(
        writer.thread, replace_budget(policy, 40), DEFAULT_LANE
    )


def replace_budget(policy: ContextPolicy, tokens: int) -> ContextPolicy:
    """The same policy with another budget."""
    return policy.model_copy(update={"max_input_tokens": tokens})
