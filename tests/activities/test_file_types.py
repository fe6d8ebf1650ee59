"""Types by first bytes: of files as programs write them, each also read by the library of its kind."""

from __future__ import annotations

import io
import os
from typing import Any

import pypdf
import pytest
import tinytag
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clew_activities.file_types import decode_text, find_encoding, find_type, name_refused
from clew_activities.inspection import Inspection, choose_type
from clew_workflows.contract.errors import UnsupportedContent
from tests.support import real_files
from tests.support.examples import examples


def name_rows(rows: Any) -> Any:
    """Make parameters of rows, each with the name of its first column."""
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


@pytest.mark.parametrize(("data", "media_type"), name_rows(real_files.list_images()))
async def test_images_as_programs_write_them(data: bytes, media_type: str) -> None:
    """Each has its type, and the size that Pillow reads."""
    inspected = await Inspection().inspect(data)
    with Image.open(io.BytesIO(data)) as image:
        assert image.get_format_mimetype() in (media_type, "image/apng", "image/bmp")
        assert (inspected["width"], inspected["height"]) == image.size
    assert inspected["media_type"] == media_type


@pytest.mark.parametrize(("data", "media_type"), name_rows(real_files.list_recordings()))
def test_recordings_as_programs_write_them(data: bytes, media_type: str) -> None:
    """Each has its type; those that tinytag knows are read by it, too."""
    assert find_type(data) == media_type
    names = {"audio/mpeg": "mp3", "audio/wav": "wav", "audio/flac": "flac", "audio/ogg": "ogg", "audio/mp4": "m4a"}
    if media_type in names and not data.startswith((b"RF64", b"\0", b"\1", b"APE")):
        tag = tinytag.TinyTag.get(file_obj=io.BytesIO(data), filename=f"a.{names[media_type]}", tags=False)
        assert tag.filesize == len(data)


@pytest.mark.parametrize(("data", "media_type"), name_rows(real_files.list_documents()))
async def test_documents_as_programs_write_them(data: bytes, media_type: str) -> None:
    """Each has its type, and a PDF file the pages that pypdf counts."""
    inspected = await Inspection().inspect(data)
    assert inspected["media_type"] == media_type
    if media_type == "application/pdf":
        assert inspected["pages"] == len(pypdf.PdfReader(io.BytesIO(data), strict=False).pages) == 2


@pytest.mark.parametrize(("data", "media_type", "text"), name_rows(real_files.list_texts()))
async def test_texts_as_programs_write_them(data: bytes, media_type: str, text: str) -> None:
    """Each is a text of its type, whatever its encoding is, and the model reads its characters."""
    inspected = await Inspection().inspect(data)
    assert inspected["media_type"] == media_type
    assert decode_text(data) == text
    for declared in ("text/plain", "text/csv", "application/vnd.ms-excel"):
        assert choose_type(declared, inspected["media_type"]).startswith("text/")


@pytest.mark.parametrize(("name", "data"), list(real_files.list_refused()))
async def test_what_is_not_taken_is_named(name: str, data: bytes) -> None:
    """The refusal says what the file looks like, and what to do with it."""
    with pytest.raises(UnsupportedContent) as refused:
        await Inspection().inspect(data)
    assert name in refused.value.message
    assert ": " in refused.value.message


def test_no_file_of_one_kind_has_the_type_of_another() -> None:
    """The rows of all kinds together: each type is found by one way only."""
    rows = [*real_files.list_images(), *real_files.list_recordings(), *real_files.list_documents()]
    assert [(name, find_type(data)) for name, data, _ in rows] == [(name, kind) for name, _, kind in rows]
    assert [name for name, data, *_ in real_files.list_texts() if find_type(data) or not find_encoding(data)] == []
    # A PDF file of blank pages has ASCII alone, and its signature counts.
    assert [name for name, data, kind in rows if find_encoding(data) and kind != "application/pdf"] == []


@given(
    text=st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\ufffe\uffff"), min_size=1)
)
@examples(200)
def test_every_text_with_a_mark_is_read_back(text: str) -> None:
    """In each encoding that has one."""
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        data = text.encode(encoding)
        assert find_encoding(data) == encoding
        assert decode_text(data) == text


@given(data=st.binary(max_size=3000))
@examples(300)
def test_any_bytes_have_a_type_or_a_refusal(data: bytes) -> None:
    """Nothing in them raises, and a refusal says what to do."""
    if find_type(data) is None and find_encoding(data) is None:
        assert ": " in name_refused(data)
    decode_text(data)


@pytest.mark.parametrize("follows", [" is how such files begin", ""])
@pytest.mark.parametrize(
    "start",
    ["GIF89a", "%PDF-1.4", "RIFFsizeWEBP", "RIFFsizeWAVE", "FORMsizeAIFF", "    ftypisom", "sizemoov", "BM", "ID3"],
)
async def test_a_text_that_begins_as_other_files_do_is_a_text(start: str, follows: str) -> None:
    """The file of notes about a format, for one."""
    assert find_type(f"{start}{follows}".encode()) is None
    assert (await Inspection().inspect(f"{start}{follows}".encode()))["media_type"] == "text/plain"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_text_with_a_mark_whose_end_is_cut_is_a_text(encoding: str, cut: int) -> None:
    """It is no recording, though its mark is also the beginning of a frame."""
    data = "Hello world".encode(encoding)[:-cut]
    assert (find_type(data), find_encoding(data)) == (None, encoding)
    assert decode_text(data).startswith("Hello wor")


def test_noise_is_no_recording() -> None:
    """Frames of MPEG audio are found behind junk, and not in random bytes."""
    assert [find_type(os.urandom(100_000)) for _ in range(50)] == [None] * 50
