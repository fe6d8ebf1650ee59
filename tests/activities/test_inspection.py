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
from clew_activities.inspection import Inspection, choose_type, find_type
from clew_workflows.contract.content import MAX_BLOB_BYTES
from clew_workflows.contract.errors import ContentMismatch, TooLarge, UnsupportedContent
from tests.support.examples import examples
from tests.support.media import make_pdf, make_png, make_wav


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (make_png(), "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"\0\0\0\x18ftypheic", "image/heic"),
        (b"\0\0\0\x18ftypavif", "image/avif"),
        (b"\0\0\0\x18ftypM4A ", "audio/mp4"),
        (b"\0\0\0\x18ftypisom", "video/mp4"),
        (make_pdf(), "application/pdf"),
        (make_wav(1), "audio/wav"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xfb\x90\x64\0", "audio/mpeg"),
        (b"OggS", "audio/ogg"),
        (b"fLaC", "audio/flac"),
        (b"PK\x03\x04[Content_Types].xml word/document.xml", f"application/vnd.openxmlformats-{'officedocument'}."
         "wordprocessingml.document"),
        (b"PK\x03\x04 mimetypeapplication/epub+zip", "application/epub+zip"),
        (b"PK\x03\x04 a.exe", None),
        (b"hello", None),
    ],
)  # fmt: skip
def test_first_bytes_name_the_type(data: bytes, media_type: str | None) -> None:
    """Images, recordings, documents and office files are told apart; other archives and texts have no signature."""
    assert find_type(data) == media_type


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


@pytest.mark.parametrize(
    "media_type", ["image/png", "image/jpeg", "image/gif", "image/tiff", "image/webp", "image/heic"]
)
@given(tail=st.binary(max_size=200))
@examples(100)
def test_a_damaged_header_is_a_refusal(media_type: str, tail: bytes) -> None:
    """An image with the right first bytes and any others behind them has a size or is refused."""
    start = {"image/webp": b"RIFF\0\0\0\0WEBP", "image/heic": b"\0\0\0\x18ftypheic"}.get(media_type)
    start = start or next(signature for _, signature, named in inspection._SIGNATURES if named == media_type)
    assert find_type(start + tail) == media_type
    with suppress(ContentMismatch, TooLarge):
        width, height = inspection.measure_image(start + tail, media_type)
        assert 1 <= min(width, height) <= max(width, height) <= inspection.MAX_SIDE


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe\x41\0", b"#!/bin/sh\n", b"MZ\x90", b"PK\x03\x04 a.exe"])
async def test_what_no_model_reads_is_refused(data: bytes) -> None:
    """Binary data, scripts, programs and archives are refused."""
    with pytest.raises(UnsupportedContent):
        await Inspection().inspect(data)
