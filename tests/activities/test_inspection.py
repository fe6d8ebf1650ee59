"""What blobs are by their first bytes and headers."""

from __future__ import annotations

import struct
import time
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities import inspection
from clew_activities.file_types import find_type
from clew_activities.inspection import Inspection, choose_type
from clew_workflows.contract.errors import ContentMismatch, TooLarge, UnsupportedContent
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from tests.support.examples import examples
from tests.support.media import make_pdf


@pytest.mark.parametrize(
    ("declared", "inspected", "chosen"),
    [
        (None, "image/png", "image/png"),
        ("application/octet-stream", "image/png", "image/png"),
        ("image/jpg", "image/jpeg", "image/jpeg"),
        ("text/csv", "text/plain", "text/csv"),
        ("text/markdown", "text/html", "text/markdown"),
        ("application/json", "text/plain", "application/json"),
        ("audio/webm", "video/webm", "audio/webm"),
    ],
)
def test_a_declared_type_may_be_another_name(declared: str | None, inspected: str, chosen: str) -> None:
    """Another name of the type, and any type of text for a text, are taken."""
    assert choose_type(declared, inspected) == chosen


@pytest.mark.parametrize(
    ("declared", "inspected", "refusal"),
    [
        ("image/png", "image/jpeg", ContentMismatch),
        ("image/png", "text/html", ContentMismatch),
        ("text/plain", "application/pdf", ContentMismatch),
        ("image/svg+xml", "application/xml", UnsupportedContent),
    ],
)
def test_a_false_type_is_refused(declared: str, inspected: str, refusal: type[Exception]) -> None:
    """A type that the bytes do not have is refused, and SVG as an image always."""
    with pytest.raises(refusal):
        choose_type(declared, inspected)


async def test_an_image_of_too_many_pixels_is_refused_without_decoding_it() -> None:
    """A PNG of 60 000 x 60 000 pixels in a few bytes is too large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"\0" * 50
    with pytest.raises(TooLarge):
        await Inspection().inspect(bomb)


async def test_a_blob_has_at_most_its_most_bytes() -> None:
    """A blob of one byte too many is refused, whatever it is."""
    with pytest.raises(TooLarge):
        await Inspection().inspect(bytes(MAX_BLOB_BYTES + 1))


async def test_damaged_documents_have_no_pages_and_take_bounded_time() -> None:
    """A PDF without its objects, and one whose tree of pages leads to itself, are described without pages, soon."""
    begun = time.monotonic()
    assert "pages" not in await Inspection().inspect(b"%PDF-1.7\n" + b"1 0 obj <</Kids [1 0 R]>> endobj\n" * 1_000)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "answer", [b"", b"{", b"[1]", b"7", *(f'{{"pages": {x}}}'.encode() for x in ('"7"', "true", "1.5", "-1", 10**9))]
)
async def test_a_child_that_has_been_taken_over_says_nothing(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """What it writes is a number of pages, or the file is described without one."""

    async def run_child(*_: object) -> bytes:
        return answer

    monkeypatch.setattr(inspection, "run_child", run_child)
    assert await Inspection().inspect(make_pdf(2)) == {"media_type": "application/pdf", "bytes": len(make_pdf(2))}


_STARTS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF89a\1\0",
    "image/tiff": b"II*\0",
    "image/webp": b"RIFF\0\0\0\0WEBP",
    "image/heic": b"\0\0\0\x18ftypheic",
}


@pytest.mark.parametrize("media_type", list(_STARTS))
@given(tail=st.binary(max_size=200))
@examples(100)
def test_a_damaged_header_is_a_refusal(media_type: str, tail: bytes) -> None:
    """An image with the right first bytes and any others behind them has a size or is refused."""
    start = _STARTS[media_type]
    assert find_type(start + tail) == media_type
    with suppress(ContentMismatch, TooLarge):
        width, height = inspection.measure_image(start + tail, media_type)
        assert 1 <= min(width, height) <= max(width, height) <= inspection.MAX_SIDE
