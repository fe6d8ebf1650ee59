"""The layers of a lane: what lies under its messages, and what an expand takes off."""

from __future__ import annotations

from clew.thread.lane import Lane
from clew.thread.layers import REMEMBERED, Layer, Layers
from tests.support.threads import Writer, said


def lane_of(writer: Writer) -> Lane:
    lane = writer.thread.lane("default")
    assert lane
    return lane


def layers(writer: Writer) -> Layers:
    return lane_of(writer).layers


def test_a_lane_stands_upon_nothing_at_first() -> None:
    assert Layers().top == Layer(base=True)
    assert Layers().known
    assert not Layers().compacted


def test_compactions_lie_upon_one_another_and_come_off_one_by_one() -> None:
    """A summary and a snapshot alike; at every seq the layers are those of that time."""
    writer = Writer().talk(said("a"), said("b"))
    summary = writer.summary(0)
    assert (layers(writer).top.summary, layers(writer).top.summed) == (summary.seq, 0)
    snapshot = writer.replace([said("c")], base_seq=1, reason="compaction")
    assert (layers(writer).top.anchor, layers(writer).top.after) == (snapshot.seq, 1)
    writer.expand()
    assert layers(writer).top.summary == summary.seq
    last = writer.expand()
    assert not layers(writer).compacted
    writer.expand()
    assert layers(writer).seq == last.seq
    assert lane_of(writer).layers_at(snapshot.seq).top.anchor == snapshot.seq
    assert lane_of(writer).layers_at(0) == Layers()


def test_any_other_snapshot_begins_anew() -> None:
    """Nothing is beneath it, and nothing is pinned."""
    writer = Writer().talk(said("a"))
    writer.pin(0)
    writer.summary(0)
    writer.replace([said("b")])
    assert (layers(writer).compacted, layers(writer).pinned) == (False, ())


def test_what_is_pinned_adds_up() -> None:
    writer = Writer().talk(said("a"), said("b"))
    writer.pin(1)
    writer.pin(0, 1)
    assert layers(writer).pinned == (0, 1)
    writer.operate("unpin", seqs=[1, 7])
    assert layers(writer).pinned == (0,)


def test_a_summary_of_what_is_no_longer_there_changes_nothing() -> None:
    writer = Writer().talk(said("a"), said("b"))
    writer.replace([said("c")])
    before = layers(writer)
    writer.summary(0)
    assert layers(writer) is before


def test_a_summary_of_less_changes_nothing() -> None:
    """One of as much takes the place of the one in force, and an `expand` finds that again."""
    writer = Writer().talk(said("a"), said("b"), said("c"))
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
    writer = Writer().talk(said("a"))
    for _ in range(2 * REMEMBERED):
        writer.replace([said("b")], base_seq=0, reason="compaction")
    assert len(layers(writer).stack) == REMEMBERED
    for _ in range(2 * REMEMBERED):
        writer.expand()
    assert len(layers(writer).stack) == 1
    assert layers(writer).known


def test_what_is_not_known_stays_unknown_until_a_lane_begins_anew() -> None:
    """Of a lane in the archive, a compaction on top says nothing about what is beneath."""
    writer = Writer().talk(said("a"))
    compaction = writer.replace([said("b")], base_seq=0, reason="compaction")
    unknown = Layers(())
    assert not unknown.under(compaction).known
    assert not unknown.under(compaction).under(writer.expand()).known
    assert unknown.under(writer.summary(0)) is unknown
    assert unknown.under(writer.replace([])).known
