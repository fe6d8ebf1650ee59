from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.archive.errors import SegmentDamaged
from clew_activities.archive.segment import decode, encode, hash_bytes, split
from clew_workflows.thread.entries import Entry
from tests.support.archives import draw_threads, make_entries, make_entry


@given(draw_threads())
def test_round_trip(entries: list[Entry]) -> None:
    """Entries are read as they were written, to the last digit of every number; equal entries give equal bytes."""
    data = encode(entries)
    back = decode(data, hash_bytes(data), "s")
    assert repr([_sort(one.as_dict()) for one in back]) == repr([_sort(one.as_dict()) for one in entries])
    assert encode(back) == data


def _sort(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sort(value[key]) for key in sorted(value)}
    return [_sort(item) for item in value] if isinstance(value, list) else value


def test_damage_of_any_byte_is_found_and_named() -> None:
    """No changed, missing or additional byte goes unnoticed."""
    data = encode(make_entries(3, 3))
    digest = hash_bytes(data)
    for i in range(len(data)):
        for broken in (data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], data[:i], data[:i] + b" " + data[i:]):
            with pytest.raises(SegmentDamaged, match="segments/x is damaged"):
                decode(broken, digest, "segments/x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b"nonsense",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b"\xff\n",
        encode(make_entries(0, 2)).replace(b"segment", b"node"),
        encode(make_entries(0, 2)).replace(b'"version":1', b'"version":0'),
        encode(make_entries(0, 2)).replace(b'"version":1', b'"version":"2"'),
        encode(make_entries(0, 2)).replace(b'"to_seq":1', b'"to_seq":2'),
        encode(make_entries(0, 2)).replace(b'"from_seq":0', b'"from_seq":null'),
        encode(make_entries(0, 2)).replace(b'"kind":"ai_message"', b'"kind":"unheard_of"'),
        encode(make_entries(0, 2)).replace(b'"seq":1', b'"seq":7'),
        encode(make_entries(0, 2)).replace(b'"tokens"', b'"t"'),
        b'{"clew":"segment","version":1,"from_seq":0,"to_seq":-1}\n',
    ],
)
def test_what_is_no_segment_is_named(data: bytes) -> None:
    """Also with the right checksum, nothing is read that is not a segment of consecutive entries."""
    with pytest.raises(SegmentDamaged, match="segments/x"):
        decode(data, hash_bytes(data), "segments/x")


def test_what_is_not_json_is_refused_on_writing() -> None:
    """A segment that could not be read back is never written."""
    with pytest.raises(ValueError, match="at least one"):
        encode([])
    for bad, why in (("\ud800", "surrogates not allowed"), (float("nan"), "not JSON compliant")):
        with pytest.raises(ValueError, match=why):
            encode([Entry(0, "e", "error", "", {"bad": bad}, {}, 0)])


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 2000))
def test_split_keeps_all_in_order_and_under_the_size(lengths: list[int], size: int) -> None:
    """Pieces join to the run they come from; each is under the size or a single entry."""
    entries = [make_entry(seq, text="x" * length) for seq, length in enumerate(lengths)]
    pieces = split(entries, size)
    assert [one for piece in pieces for one in piece] == entries
    assert split(iter(entries), size) == pieces
    for piece in pieces:
        assert len(piece) == 1 or len(encode(piece)) - len(encode(piece).splitlines()[0]) - 1 <= size
    assert split([], 500) == []


def test_a_long_thread_is_split_near_a_megabyte() -> None:
    """A run of large entries makes segments of about a megabyte."""
    pieces = split([make_entry(seq, text="x" * 100_000) for seq in range(25)], 1_000_000)
    assert [len(piece) for piece in pieces] == [9, 9, 7]
