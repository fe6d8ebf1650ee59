"""The layers of a lane: what lies under its messages, and what an expand takes off."""

from __future__ import annotations

from clew_workflows.thread.lane import MAX_LAYERS, Lane, Layer, Layers
from tests.support.threads import Writer, user_says


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
