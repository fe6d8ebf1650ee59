"""What Clew has compressed is read, and nothing that inflates beyond it."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from typing import Any

import pytest

from clew.errors import InvalidInput
from clew_workflows.session.carried import FORMAT, restore
from clew_workflows.values import MAX_INFLATED_BYTES, Packed, inflate

WHOLE = zlib.compress(b"x" * 1000)


def test_what_was_packed_is_read() -> None:
    """Any JSON value is unpacked as it was packed."""
    values: tuple[Any, ...] = (None, [], {"a": ["b", 2**53, 1.5]})
    for value in values:
        assert Packed.pack(value).value == value


def test_exactly_as_much_as_is_allowed_is_inflated() -> None:
    """One byte more is refused."""
    assert inflate(WHOLE, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="inflates to more than 999 bytes"):
        inflate(WHOLE, 999)


@pytest.mark.parametrize("data", [b"", b"x", WHOLE[:-1], WHOLE[:9], WHOLE + b"x", WHOLE + WHOLE])
def test_what_is_not_one_whole_stream_is_refused(data: bytes) -> None:
    """Damaged, cut short, or with something behind it."""
    with pytest.raises(ValueError, match=r"compressed value|header"):
        inflate(data, 10_000)


def make_packed(text: bytes) -> dict[str, int | str]:
    return {"version": FORMAT.version, "zlib": base64.b64encode(zlib.compress(text, 9)).decode()}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 500_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'{"state":' * 100_000,
        b'{"state":' + b"9" * 5000 + b"}",
        b'{"version":1,"thread":' + b"[" * 10_000_000,
        b'{"state":"\\ud800"}',
        b"\xff\xfe",
        b"NaN",
    ],
)
def test_json_that_breaks_parsers_is_refused(text: bytes) -> None:
    """Nested without an end, numbers without an end, no UTF-8: typed, as all that Clew has not written."""
    with pytest.raises(InvalidInput, match="carried is written by Clew alone"):
        restore(make_packed(text))


def test_a_bomb_is_refused_in_little_memory() -> None:
    """512 MB in half a megabyte: a thirtieth of it is inflated before it is refused."""
    stream = zlib.compressobj(9)
    bomb = b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(512)), stream.flush()])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=f"inflates to more than {MAX_INFLATED_BYTES} bytes"):
            restore({"version": FORMAT.version, "zlib": base64.b64encode(bomb).decode()})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_INFLATED_BYTES
