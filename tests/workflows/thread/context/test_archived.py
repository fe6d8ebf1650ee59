"""Threads whose older part is in an archive: what is kept of it, and what is loaded."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from clew.errors import Archived, ContextOverflow
from clew_workflows.contract.policy import ClearToolResults, ContextPolicy
from clew_workflows.thread.context.archived import load_thread, retain
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Retained, Thread
from tests.support.examples import examples
from tests.support.generated_threads import (
    LANES,
    Corrected,
    OpenCalls,
    Pinned,
    Steered,
    Step,
    Turn,
    Withdrawn,
    histories,
    policies,
    write,
)
from tests.support.threads import Back, Writer, assistant_calls, assistant_says, make_recipe, tool_returns, user_says

# A thread that retains a part of its archived entries gives the same contexts as the full thread, or `Archived`.


PLENTY = 10_000_000


def answer(thread: Thread, policy: ContextPolicy, lane: str | None, at_seq: int | None = None) -> Projection | str:
    """A context, or the reason why it cannot be built."""
    try:
        return build_context(thread, context_ref=lane, at_seq=at_seq, policy=policy.complete())
    except ContextOverflow as error:
        return str(error)
    except Archived:
        return "archived"


def without(full: Thread, now: int, first_seq: int, retained: Retained) -> Thread:
    """The thread as it was at a time, without its past."""
    return Thread(full.slice(first_seq, now), first_seq, retained)


def test_a_pin_of_what_is_no_message_of_the_lane_hides_nothing() -> None:
    """The pinned entry is in another lane: contexts are as without the pin, also right after the archived part."""
    tools, other = Turn("default", "", [1], None), Steered("draft", "")
    full = write([tools, other, Pinned("default", "pin", [0]), *[Turn("default", "", [], None)] * 12])
    policy = ContextPolicy(max_input_tokens=100, reserve_output_tokens=0, summarization="none")
    last = full.last_seq
    reduced = without(full, last, 2, retain(full, 2, {"default": [policy]}, PLENTY, last))
    assert answer(reduced, policy, "default") == answer(full, policy, "default")


def test_where_the_part_begins_that_a_thread_holds() -> None:
    """After the newest message of the lane that is in the archive alone: contexts need none before it."""
    full = write([Turn("default", "", [], None)] * 6)
    policy, last = ContextPolicy(max_input_tokens=60, reserve_output_tokens=0), full.last_seq
    reduced = without(full, last, last - 1, retain(full, last - 1, {"default": [policy]}, 300, last))
    held = reduced.get_lane("default")
    assert held
    assert (reduced.find_first_held_seq("default"), list(held.message_seqs)) == (3, [3, 4, 5])
    assert [held.holds(seq) for seq in range(full.rev)] == [False] * 3 + [True] * 3


def test_results_that_are_missing_do_not_shorten_what_an_epoch_reaches() -> None:
    """An epoch's measure has no placeholder results, so a call without a result is smaller there."""
    full = write([Turn("default", "", [1, 3], None), OpenCalls("default", 3, None), Turn("default", "", [1], None)])
    policy = ContextPolicy(
        max_input_tokens=300, reserve_output_tokens=0, keep_last_turns=0, window="epoch", low_water=0.1
    )
    upto = full.last_seq - 1
    reduced = without(full, upto, 1, retain(full, 1, {"default": [policy]}, PLENTY, upto))
    assert answer(reduced, policy, "default") == answer(full, policy, "default", upto)


def test_a_correction_after_a_context_takes_nothing_from_it() -> None:
    """A corrected answer leaves the lane. What was kept for a context before it is enough as it was."""
    full = write([*[Turn("default", "", [], None)] * 11, Corrected("default", [1], "", None)])
    policy = ContextPolicy(max_input_tokens=100, reserve_output_tokens=0, keep_last_turns=0)
    reduced = without(full, full.last_seq, 1, retain(full, 1, {"default": [policy]}, PLENTY, 10))
    assert answer(reduced, policy, "default", 10) == answer(full, policy, "default", 10)


def test_after_a_withdrawal_the_run_before_is_not_taken_for_what_is_left_of_it() -> None:
    """Its first message is in the archive alone, and a later one of the user is the first that the thread has."""
    turns, cut = [Turn("default", "", [], "yes")] * 3, Turn("default", "", [1, 1], None)
    full = write([*turns, cut, Steered("default", ""), Withdrawn("default", 2, True)])
    policy = ContextPolicy(
        max_input_tokens=30, reserve_output_tokens=0, keep_last_turns=0, window="epoch", summarization="none"
    )
    now = full.last_seq - 2
    reduced = without(full, now, 7, retain(Thread(full.slice(0, now)), 7, {"default": [policy]}, PLENTY))
    for entry in full.slice(now + 1, full.last_seq):
        reduced.append(entry)
    assert answer(reduced, policy, "default") == "archived"


@examples(300)
@given(
    steps=st.lists(histories, min_size=1, max_size=3).map(lambda some: [step for steps in some for step in steps]),
    both=st.tuples(policies, policies),
    lane=st.sampled_from(LANES),
    room=st.one_of(st.integers(0, 20_000), st.just(PLENTY)),
    data=st.data(),
)
@pytest.mark.slow
def test_it_answers_as_the_whole_thread_or_not_at_all(
    steps: list[Step], both: tuple[ContextPolicy, ContextPolicy], lane: str, room: int, data: st.DataObject
) -> None:
    """Entries are dropped at any seq, several times: each context equals the full thread's, or is refused."""
    policy = both[0]
    full = write(steps)
    reduced, first = Thread(), 0
    for now in sorted(data.draw(st.lists(st.integers(0, full.last_seq), min_size=1, max_size=2))):
        reduced = Thread((*reduced, *full.slice(reduced.rev, now)), reduced.first_seq, reduced.retained)
        first = data.draw(st.integers(first, max(now + 1, first)))
        upto = data.draw(st.integers(max(first - 1, reduced.retained.upto, 0), now))
        before = answer(reduced, policy, lane, upto)
        reduced = without(full, now, first, retain(reduced, first, {lane: [policy]}, room, upto))
        if room == PLENTY:
            assert answer(reduced, policy, lane, upto) == before
    for entry in full.slice(reduced.rev, full.last_seq):
        reduced.append(entry)
    for at_seq in (None, *range(max(first - 1, 0), full.rev)):
        for some_policy in both:
            for name in LANES:
                context = answer(reduced, some_policy, name, at_seq)
                assert context in (answer(full, some_policy, name, at_seq), "archived")


def test_what_is_kept_follows_the_policy_and_not_the_thread() -> None:
    """A long thread retains as much as a short one, and it is enough for the next context."""
    policy = ContextPolicy(max_input_tokens=400, reserve_output_tokens=0)
    sizes = []
    for turns in (50, 500):
        full = write([Turn(DEFAULT_LANE, f"question {n}", [1], "an answer") for n in range(turns)])
        retained = retain(full, full.rev, {DEFAULT_LANE: [policy]}, PLENTY)
        reduced = without(full, full.last_seq, full.rev, retained)
        assert answer(reduced, policy, DEFAULT_LANE) == answer(full, policy, DEFAULT_LANE)
        assert answer(reduced, replace_budget(policy, 8000), DEFAULT_LANE) == "archived"
        sizes.append(len(retained.entries))
    assert max(sizes) - min(sizes) <= 2


def test_one_message_more_than_fits_is_kept() -> None:
    """The window ends where the next message does not fit, so that this one must be known, and none before it."""
    writer = Writer()
    for _ in range(12):
        writer.message(user_says("a question"))
    full, tokens = writer.thread, writer.thread[0].tokens
    for budget in range(4 * tokens - 1, 4 * tokens + 2):
        policy = ContextPolicy(max_input_tokens=budget, reserve_output_tokens=0, summarization="none")
        retained = retain(full, full.rev, {DEFAULT_LANE: [policy]}, PLENTY)
        assert len(retained.entries) == budget // tokens + 1
        reduced = without(full, full.last_seq, full.rev, retained)
        assert answer(reduced, policy, DEFAULT_LANE) == answer(full, policy, DEFAULT_LANE)


def test_results_that_are_truncated_to_what_is_left_need_what_is_before_them() -> None:
    """The newest round's results may be truncated below their share, which leaves room for older messages."""
    policy = ContextPolicy(max_input_tokens=600, reserve_output_tokens=0, summarization="none")
    talk = [user_says("before"), assistant_says("yes")] * 2
    writer = Writer().talk(*talk, user_says("look"))
    reply = assistant_calls("x")
    reply["tool_calls"][0]["arguments"] = {"expression": "1" * 1560}
    writer.talk(reply, tool_returns("x", "word " * 1000))
    full = writer.thread
    reduced = without(full, full.last_seq, full.rev, retain(full, full.rev, {DEFAULT_LANE: [policy]}, PLENTY))
    loaded = part(full, full.last_seq, None, policy)
    context = answer(full, policy, DEFAULT_LANE)
    assert answer(reduced, policy, DEFAULT_LANE) == answer(loaded, policy, DEFAULT_LANE) == context
    assert isinstance(context, Projection)
    assert len(context.messages) == 7


def test_a_snapshot_that_is_the_first_entry_is_kept() -> None:
    """Contexts begin with it, however long ago it was put under the lane."""
    policy = ContextPolicy(max_input_tokens=100, reserve_output_tokens=0, summarization="none")
    writer = Writer()
    writer.replace([user_says("before")])
    full = writer.talk(user_says("hello"), assistant_says("yes")).thread
    reduced = without(full, full.last_seq, full.rev, retain(full, full.rev, {DEFAULT_LANE: [policy]}, PLENTY))
    loaded = part(full, full.last_seq, None, policy)
    context = answer(full, policy, DEFAULT_LANE)
    assert answer(reduced, policy, DEFAULT_LANE) == answer(loaded, policy, DEFAULT_LANE) == context
    assert "before" in str(context)


@pytest.mark.parametrize(("held_from", "first"), [(2, 2), (3, 3), (4, 3), (5, 3), (6, 6)])
def test_what_is_held_is_kept_with_its_whole_round(held_from: int, first: int) -> None:
    """Also when what is held begins with the last result of a round. Messages before it are not kept."""
    policy = ContextPolicy(max_input_tokens=20, reserve_output_tokens=0, summarization="none")
    writer = Writer().talk(user_says("before"), assistant_says("yes"), user_says("look"))
    writer.talk(assistant_calls("x", "y"), tool_returns("x"), tool_returns("y"), assistant_says("12"))
    writer.talk(user_says("and now?"), assistant_says("still 12"))
    full = writer.thread
    retained = retain(full, full.rev, {DEFAULT_LANE: [policy]}, PLENTY, held_from=held_from)
    assert [entry.seq for entry in retained.entries] == list(range(first, full.rev))


def test_what_will_be_cleared_does_not_hide_what_is_before_it() -> None:
    """When the newest results become older the window reaches further back; those messages have been retained."""
    rule = ClearToolResults(keep=4)
    policy = ContextPolicy(max_input_tokens=800, reserve_output_tokens=0, clear_tool_results=rule)
    writer = Writer()
    for number in range(40):
        writer.talk(user_says(f"question {number}"), assistant_says("fine"))
    writer.message(user_says("look"))
    for number in range(4):
        writer.talk(assistant_calls(f"tool{number:05d}"), tool_returns(f"tool{number:05d}", "word " * 120))
    first = writer.thread.rev
    retained = retain(writer.thread, first, {DEFAULT_LANE: [policy]}, PLENTY)
    reduced = Thread((), first, retained)
    for number in range(4):
        later = (
            assistant_says("well"),
            user_says("again"),
            assistant_calls(f"late-{number}"),
            tool_returns(f"late-{number}", "4"),
        )
        for message in later:
            reduced.append(writer.message(message))
        assert answer(reduced, policy, DEFAULT_LANE) == answer(writer.thread, policy, DEFAULT_LANE)
    assert "question 38" in str(answer(reduced, policy, DEFAULT_LANE))


def test_what_is_pinned_is_kept_as_far_as_there_is_room() -> None:
    """What has none is said to be in the archive, so that it is fetched, and nothing else is amiss."""
    policy = ContextPolicy(max_input_tokens=4000, reserve_output_tokens=0)
    writer = Writer()
    writer.thread = write([Turn(DEFAULT_LANE, f"question {n} " + "x" * 900, [], "an answer") for n in range(30)])
    writer.pin(0, 2)
    full, needs = writer.thread, {DEFAULT_LANE: [policy]}
    for room, expected in ((PLENTY, (0, 2)), (0, ())):
        retained = retain(full, full.rev, needs, room)
        assert retained.gaps[DEFAULT_LANE].pinned == expected
        reduced = without(full, full.last_seq, full.rev, retained)
        context = answer(full, policy, DEFAULT_LANE)
        assert answer(reduced, policy, DEFAULT_LANE) == (context if room else "archived")
    size = sum(len(to_json(entry.as_dict())) for entry in retain(full, full.rev, needs, PLENTY).entries)
    rooms = [(room, retain(full, full.rev, needs, room).gaps[DEFAULT_LANE].pinned) for room in (size, size - 1)]
    assert rooms == [(size, (0, 2)), (size - 1, (0,))]


def test_a_question_is_measured_once() -> None:
    """Where the kept messages begin with the newest run's question, pinned ones have all the room that is left."""
    writer = Writer().talk(*[user_says("a question"), assistant_says("an answer")] * 2)
    writer.talk(user_says("look"), *[assistant_says("well")] * 5, run="r1")
    full, tokens = writer.thread, writer.thread[writer.thread.last_seq].tokens
    writer.pin(0, 2)
    policy = ContextPolicy(max_input_tokens=5 * tokens, reserve_output_tokens=0, summarization="none")
    kept = retain(full, full.rev, {DEFAULT_LANE: [policy]}, PLENTY).entries
    assert [entry.seq for entry in kept] == [0, 2, *range(4, 10)]
    size = sum(len(to_json(entry.as_dict())) for entry in kept)
    assert retain(full, full.rev, {DEFAULT_LANE: [policy]}, size).gaps[DEFAULT_LANE].pinned == (0, 2)


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
    full = writer.thread
    for room, expected in ((PLENTY, answer(full, policy, DEFAULT_LANE)), (5000, "archived")):
        retained = retain(full, full.rev, {DEFAULT_LANE: [policy]}, room)
        reduced = without(full, full.last_seq, full.rev, retained)
        assert answer(reduced, policy, DEFAULT_LANE) == expected
    assert "correction 7" in str(answer(full, policy, DEFAULT_LANE))
    for message in (user_says("another"), assistant_says("well")):
        reduced.append(writer.message(message, run="r3"))
    assert answer(reduced, replace_budget(policy, 40), DEFAULT_LANE) == answer(
        writer.thread, replace_budget(policy, 40), DEFAULT_LANE
    )


def test_the_first_and_the_newest_words_of_a_run_need_no_room() -> None:
    """They are kept beside a window that takes all of it."""
    policy = ContextPolicy(max_input_tokens=40, reserve_output_tokens=0, summarization="none")
    writer = Writer().talk(user_says("before"), assistant_says("yes"), run="r1")
    writer.talk(user_says("do it"), *[assistant_says("well")] * 9, user_says("and now?"), run="r2")
    full, needs = writer.talk(assistant_says("done"), run="r2").thread, {DEFAULT_LANE: [policy]}
    kept = retain(full, full.rev, needs, PLENTY).entries
    assert [entry.seq for entry in kept][:2] == [2, 10]
    room = sum(len(to_json(entry.as_dict())) for entry in kept[1:])
    retained = retain(full, full.rev, needs, room)
    assert retained.entries == kept
    reduced = without(full, full.last_seq, full.rev, retained)
    assert answer(reduced, policy, DEFAULT_LANE) == answer(full, policy, DEFAULT_LANE) != "archived"


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_a_summary_covers_of_the_users_words_is_missed_without_the_summary(is_alone: bool) -> None:
    """Contexts of the first policy are complete. One without summaries, which needs more of the run, is refused."""
    policy = ContextPolicy(max_input_tokens=300, reserve_output_tokens=0)
    other = policy.model_copy(update={"summarization": "none"})
    writer = Writer().talk(user_says("before"), assistant_says("yes"), run="r1").talk(user_says("do it"), run="r2")
    for number in range(30):
        writer.talk(assistant_calls(f"t{number}"), tool_returns(f"t{number}", "word " * 20), run="r2")
        if number in (3, 5):
            writer.talk(user_says(f"correction {number}"), run="r2")
        if number == 8:
            writer.summary(writer.thread.last_seq)
    full = writer.thread
    needs = {DEFAULT_LANE: [policy] if is_alone else [policy, other]}
    first = Thread((), full.rev, retain(full, full.rev, needs, PLENTY))
    again = Thread((), full.rev, retain(first, full.rev, needs, PLENTY))
    for reduced in (first, again):
        assert answer(reduced, policy, DEFAULT_LANE) == answer(full, policy, DEFAULT_LANE)
        assert answer(reduced, other, DEFAULT_LANE) == "archived"
    assert "correction 3" in str(answer(full, other, DEFAULT_LANE))


@pytest.mark.parametrize("room", [1000, 20_000, 45_000])
def test_an_epoch_is_measured_alike_if_some_results_of_the_newest_reply_are_dropped(room: int) -> None:
    """The newest reply is kept under any epoch's policy, its results as far as there is room for them."""
    policy = ContextPolicy(max_input_tokens=3000, reserve_output_tokens=0, window="epoch").complete()
    writer = Writer()
    for number in range(30):
        writer.talk(user_says(f"question {number} " + "word " * 60), assistant_says("fine"))
    writer.message(user_says("look"))
    ids = [f"tool{number:05d}" for number in range(8)]
    reply = {"context_ref": DEFAULT_LANE, **assistant_calls(*ids), "recipe": make_recipe(writer.thread.last_seq)}
    writer.commit("ai_message", reply, call_id="call-1")
    for call_id in ids:
        writer.message(tool_returns(call_id, "word " * 1000))
    first = writer.thread.rev
    retained = retain(writer.thread, first, {DEFAULT_LANE: [policy]}, room)
    here = without(writer.thread, first - 1, first, retained)
    contexts = []
    for number in range(60):
        for message in (user_says(f"later {number} " + "word " * 60), assistant_says("well")):
            here.append(writer.message(message))
        contexts.append(answer(here, policy, DEFAULT_LANE))
        assert contexts[-1] in (answer(writer.thread, policy, DEFAULT_LANE), "archived")


def replace_budget(policy: ContextPolicy, tokens: int) -> ContextPolicy:
    """The same policy with another budget."""
    return policy.model_copy(update={"max_input_tokens": tokens})


# Reading a thread piece by piece.


def part(thread: Thread, upto: int, lane: str | None, policy: ContextPolicy) -> Thread:
    return asyncio.run(load_thread(Back(thread, upto), lane, lambda _in_force: policy))


@examples(100)
@given(
    steps=st.lists(histories, min_size=1, max_size=3).map(lambda some: [step for steps in some for step in steps]),
    both=st.tuples(policies.map(ContextPolicy.complete), policies.map(ContextPolicy.complete)),
    lane=st.sampled_from((None, *LANES)),
    data=st.data(),
)
def test_what_is_read_is_enough(
    steps: list[Step], both: tuple[ContextPolicy, ContextPolicy], lane: str | None, data: st.DataObject
) -> None:
    """The context of the loaded part equals that of the full thread; one under another policy does, or is refused."""
    policy, other = both
    thread = write(steps)
    at_seq = data.draw(st.integers(0, thread.last_seq))
    loaded = part(thread, at_seq, lane, policy)
    assert answer(loaded, policy, lane) == answer(thread, policy, lane, at_seq)
    assert answer(loaded, other, lane) in (answer(thread, other, lane, at_seq), "archived")


def test_what_was_read_for_contexts_with_a_summary_is_not_all_that_others_hold() -> None:
    """A run's messages before a summary in its middle were not read. A context without summaries is refused."""
    writer = Writer().talk(user_says("old"), assistant_says("ok"), run="r0").talk(user_says("do it"), run="r1")
    writer.talk(assistant_calls("t0"), tool_returns("t0", "word " * 20), user_says("never touch it"), run="r1")
    writer.summary(writer.thread.last_seq, "what was said")
    writer.talk(user_says("go on"), run="r1")
    for number in range(1, 20):
        writer.talk(assistant_calls(f"t{number}"), tool_returns(f"t{number}", "word " * 20), run="r1")
    policy = ContextPolicy(max_input_tokens=300, reserve_output_tokens=0).complete()
    loaded = part(writer.thread, writer.thread.last_seq, None, policy)
    assert answer(loaded, policy, None) == answer(writer.thread, policy, None)
    assert answer(loaded, policy.overlay(ContextPolicy(summarization="none")), None) == "archived"


def test_the_configuration_that_set_the_prompt_is_read_too() -> None:
    """A snapshot's prompt that came after it stays in force, whatever else was configured since."""
    writer = Writer()
    writer.config(system_prompt="first")
    writer.replace([user_says("before")], system_prompt="the snapshot's")
    writer.config(system_prompt="first", model="openai:other")
    policy = ContextPolicy(max_input_tokens=4000)
    context = answer(part(writer.thread, 2, None, policy), policy, None)
    assert context == answer(writer.thread, policy, None)
    assert isinstance(context, Projection)
    assert context.messages[0]["content"] == "the snapshot's"
