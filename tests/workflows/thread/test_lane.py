"""Lanes: the layers under their messages, and what a context begins with."""

from __future__ import annotations

from typing import Literal

import pytest

from clew.errors import ContextOverflow
from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import project
from clew_workflows.thread.lane import MAX_LAYERS, Lane, Layer, Layers
from tests.support.threads import (
    WIDE,
    Writer,
    assistant_calls,
    assistant_says,
    project_messages,
    project_thread,
    system_says,
    tool_returns,
    user_says,
)

# What a lane starts from: its snapshot, its latest summary, or nothing.


def test_a_summary_may_speak_as_a_user() -> None:
    """`summary_role` is the role of the summary's message."""
    writer = Writer().talk(user_says("a"), assistant_says("b"))
    writer.summary(1, "ab")
    policy = WIDE.overlay(ContextPolicy(summary_role="user"))
    assert project_messages(writer.thread, policy) == [user_says("Summary of earlier conversation:\nab")]


def test_the_latest_summary_counts() -> None:
    """Of several summaries the last one written stands, unless an earlier one covers more."""
    writer = Writer().talk(user_says("a"), assistant_says("b"), user_says("c"), assistant_says("d"))
    writer.summary(1, "ab")
    assert project_messages(writer.thread) == [
        system_says("Summary of earlier conversation:\nab"),
        user_says("c"),
        assistant_says("d"),
    ]
    writer.summary(3, "abcd")
    assert project_messages(writer.thread) == [system_says("Summary of earlier conversation:\nabcd")]
    writer.summary(1, "a and b")
    assert project_messages(writer.thread) == [system_says("Summary of earlier conversation:\nabcd")]


def test_a_summary_that_ends_inside_a_tool_group_takes_all_of_it() -> None:
    """A group whose calls are summed up is not shown by its results alone."""
    writer = Writer().talk(user_says("a"), assistant_calls("x", "y"), tool_returns("x"))
    writer.summary(2, "ax")
    writer.talk(tool_returns("y"), assistant_says("b"))
    assert project_messages(writer.thread) == [
        system_says("Summary of earlier conversation:\nax"),
        assistant_says("b"),
    ]


def test_summaries_unused_leave_the_history_whole() -> None:
    """Where a policy wants no summaries, what they cover is shown as it was."""
    writer = Writer().talk(user_says("a"), assistant_says("b"))
    writer.summary(1)
    for policy in (ContextPolicy(summarization="none"), ContextPolicy(include_kinds=("message",))):
        assert project_messages(writer.thread, policy) == [user_says("a"), assistant_says("b")]


def test_a_snapshot_starts_the_lane_anew() -> None:
    """After a `replace` the lane is its snapshot and what was said since; before, what it was."""
    writer = Writer().talk(user_says("old"))
    anchor = writer.replace([user_says("snap"), assistant_says("shot")])
    writer.talk(user_says("new"))
    assert project_messages(writer.thread) == [user_says("snap"), assistant_says("shot"), user_says("new")]
    assert project_messages(writer.thread, at_seq=anchor.seq - 1) == [user_says("old")]


def test_a_snapshot_taken_earlier_keeps_what_came_since() -> None:
    """With `base_seq` the lane goes on after that seq, not after the operation."""
    writer = Writer().talk(user_says("a"), assistant_says("b"), user_says("c"))
    writer.replace([user_says("ab")], base_seq=1)
    assert project_messages(writer.thread) == [user_says("ab"), user_says("c")]


def test_a_snapshot_inside_a_tool_group_gets_its_results() -> None:
    """A snapshot that ends with open calls is answered by the results that come after its `base_seq`."""
    writer = Writer().talk(
        user_says("a"), assistant_calls("x", "y"), tool_returns("x", "1"), tool_returns("y", "2"), assistant_says("b")
    )
    writer.replace([user_says("short"), assistant_calls("x", "y"), tool_returns("x", "1")], base_seq=2)
    context = project_thread(writer.thread)
    assert context.messages == [
        user_says("short"),
        assistant_calls("x", "y"),
        tool_returns("x", "1"),
        tool_returns("y", "2"),
        assistant_says("b"),
    ]
    assert context.meta.entries_included == 2


def test_results_after_a_snapshot_reach_the_calls_it_kept_raw() -> None:
    """A group that `base_seq` leaves raw is whole, though the operation stands between its calls and results."""
    writer = Writer().talk(user_says("a"), assistant_calls("x"))
    writer.replace([user_says("short")], base_seq=0)
    writer.talk(tool_returns("x"), assistant_says("b"))
    assert project_messages(writer.thread) == [
        user_says("short"),
        assistant_calls("x"),
        tool_returns("x"),
        assistant_says("b"),
    ]


def test_a_base_seq_from_the_future_hides_nothing() -> None:
    """A `base_seq` after the operation counts as the operation's own seq."""
    writer = Writer().talk(user_says("a"))
    writer.replace([user_says("snap")], base_seq=99)
    writer.talk(user_says("b"))
    assert project_messages(writer.thread) == [user_says("snap"), user_says("b")]


def test_a_summary_from_before_a_snapshot_is_void() -> None:
    """A summary speaks of the lane as it was: once it is replaced, only a new one counts."""
    writer = Writer().talk(user_says("a"), assistant_says("b"))
    writer.summary(1, "ab")
    writer.replace([user_says("snap")])
    writer.talk(user_says("c"))
    assert project_messages(writer.thread) == [user_says("snap"), user_says("c")]
    writer.summary(4, "snap c")
    assert project_messages(writer.thread) == [system_says("Summary of earlier conversation:\nsnap c")]


def test_a_snapshot_voids_a_summary_of_what_it_keeps_raw() -> None:
    """A summary made between `base_seq` and the operation is of the lane as it was before, too."""
    writer = Writer().talk(user_says("a"), assistant_says("b"))
    writer.summary(1, "ab")
    writer.replace([user_says("snap")], base_seq=0)
    assert project_messages(writer.thread) == [user_says("snap"), assistant_says("b")]


def test_a_summary_that_does_not_fit_ends_the_window() -> None:
    """A window without the summary shows nothing older than the summary's end, and is marked as truncated."""
    writer = Writer().talk(user_says("a"))
    writer.summary(0, "long " * 100)
    writer.talk(user_says("b"), assistant_says("c"), user_says("d"))
    policy = ContextPolicy(max_input_tokens=60, reserve_output_tokens=0, keep_last_turns=1)
    context = project_thread(writer.thread, policy)
    assert context.messages == [user_says("d")]
    assert (context.meta.truncated, context.meta.summary_used, context.meta.needs_summary) == (True, False, True)


def test_lanes_are_apart() -> None:
    """A lane holds its own messages only; a new one is empty."""
    writer = Writer().talk(user_says("a")).talk(user_says("b"), lane="draft")
    writer.switch("draft")
    assert project_messages(writer.thread) == [user_says("a")]
    assert project_messages(writer.thread, context_ref="draft") == [user_says("b")]
    assert project_messages(writer.thread, context_ref="nowhere") == []


def test_what_is_asked_meanwhile_is_never_left_out() -> None:
    """A correction within a run must fit as the first question must, and so must the results to be answered."""
    big = "word " * 200
    policy = ContextPolicy(max_input_tokens=150, reserve_output_tokens=0)
    steered = Writer().talk(user_says("Do it"), assistant_says("Doing it"), user_says(big), run="r1").thread
    with pytest.raises(ContextOverflow, match=r"^request needs"):
        project(ProjectionInput(steered, policy))
    call: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "name": "calculator", "arguments": {"text": big}}],
    }
    called = Writer().talk(user_says("Do it"), call, tool_returns("x"), run="r1").thread
    with pytest.raises(ContextOverflow, match=r"^tool_results needs"):
        project(ProjectionInput(called, policy))


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_all_that_the_current_runs_user_said_is_kept(window: Literal["sliding", "epoch"]) -> None:
    """What was steered in comes before any tool group, wherever in a long run it was said."""
    writer = Writer().talk(user_says("old"), assistant_says("older"), run="r1").talk(user_says("Do it"), run="r2")
    for number in range(40):
        writer.talk(assistant_calls(f"t{number}"), tool_returns(f"t{number}", "word " * 20), run="r2")
        if number in (3, 20):
            writer.talk(user_says(f"never touch prod {number}"), run="r2")
    policy = ContextPolicy(max_input_tokens=300, reserve_output_tokens=0, window=window)
    context = project_thread(writer.thread, policy)
    assert [message["content"] for message in context.messages if message["role"] == "user"] == [
        "Do it", "never touch prod 3", "never touch prod 20",
    ]  # fmt: skip
    assert tool_returns("t39", "word " * 20) in context.messages
    assert tool_returns("t21", "word " * 20) not in context.messages
    needed = sum(entry.tokens for entry in writer.thread if entry.payload["role"] == "user" and entry.seq > 1)
    with pytest.raises(ContextOverflow, match=r"^request needs"):
        project_thread(writer.thread, policy.model_copy(update={"max_input_tokens": needed - 1}))


# The layers of a lane: what lies under its messages, and what an expand takes off.


def lane_of(writer: Writer) -> Lane:
    lane = writer.thread.get_lane("default")
    assert lane
    return lane


def layers(writer: Writer) -> Layers:
    return lane_of(writer).layers


def test_a_lane_stands_upon_nothing_at_first() -> None:
    assert Layers().top == Layer(base=True)
    assert Layers().is_complete
    assert not Layers().is_compacted


def test_compactions_lie_upon_one_another_and_come_off_one_by_one() -> None:
    """A summary and a snapshot alike; at every seq the layers are those of that time."""
    writer = Writer().talk(user_says("a"), user_says("b"))
    summary = writer.summary(0)
    assert (layers(writer).top.summary, layers(writer).top.summarized_to) == (summary.seq, 0)
    snapshot = writer.replace([user_says("c")], base_seq=1, reason="compaction")
    assert (layers(writer).top.anchor, layers(writer).top.after) == (snapshot.seq, 1)
    writer.expand()
    assert layers(writer).top.summary == summary.seq
    last = writer.expand()
    assert not layers(writer).is_compacted
    writer.expand()
    assert layers(writer).seq == last.seq
    assert lane_of(writer).find_layers(snapshot.seq).top.anchor == snapshot.seq
    assert lane_of(writer).find_layers(0) == Layers()


def test_any_other_snapshot_begins_anew() -> None:
    """Nothing is beneath it, and nothing is pinned."""
    writer = Writer().talk(user_says("a"))
    writer.pin(0)
    writer.summary(0)
    writer.replace([user_says("b")])
    assert (layers(writer).is_compacted, layers(writer).pinned) == (False, ())


def test_what_is_pinned_adds_up() -> None:
    writer = Writer().talk(user_says("a"), user_says("b"))
    writer.pin(1)
    writer.pin(0, 1)
    assert layers(writer).pinned == (0, 1)
    writer.operate("unpin", seqs=[1, 7])
    assert layers(writer).pinned == (0,)


def test_a_summary_of_what_is_no_longer_there_changes_nothing() -> None:
    writer = Writer().talk(user_says("a"), user_says("b"))
    writer.replace([user_says("c")])
    before = layers(writer)
    writer.summary(0)
    assert layers(writer) is before


def test_a_summary_of_less_changes_nothing() -> None:
    """One of as much takes the place of the one in force, and an `expand` finds that again."""
    writer = Writer().talk(user_says("a"), user_says("b"), user_says("c"))
    wide = writer.summary(1)
    before = layers(writer)
    writer.summary(0)
    assert layers(writer) is before
    again = writer.summary(1)
    assert layers(writer).top.summary == again.seq
    writer.expand()
    assert layers(writer).top.summary == wide.seq


def test_no_more_layers_are_remembered_than_that() -> None:
    """The oldest that is becomes the base: an expand finds nothing beneath it."""
    writer = Writer().talk(user_says("a"))
    for _ in range(2 * MAX_LAYERS):
        writer.replace([user_says("b")], base_seq=0, reason="compaction")
    assert len(layers(writer).stack) == MAX_LAYERS
    for _ in range(2 * MAX_LAYERS):
        writer.expand()
    assert len(layers(writer).stack) == 1
    assert layers(writer).is_complete


def test_what_is_not_known_stays_unknown_until_a_lane_begins_anew() -> None:
    """Of a lane in the archive, a compaction on top says nothing about what is beneath."""
    writer = Writer().talk(user_says("a"))
    compaction = writer.replace([user_says("b")], base_seq=0, reason="compaction")
    unknown = Layers(())
    assert not unknown.apply(compaction).is_complete
    assert not unknown.apply(compaction).apply(writer.expand()).is_complete
    assert unknown.apply(writer.summary(0)) is unknown
    assert unknown.apply(writer.replace([])).is_complete


def test_a_correction_leaves_the_contexts_after_it() -> None:
    """Those between the correction and the operation that withdraws it still have it."""
    corrected = Layers(corrected=((2, 4, 6),))
    assert [corrected.leaves_out_later(seq, 6) for seq in range(1, 8)] == [False, *[True] * 4, False, False]
    assert not corrected.leaves_out_later(3, 5)
