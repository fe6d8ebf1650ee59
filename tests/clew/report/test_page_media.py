"""Images, recordings and files in a report, and the files beside its page."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clew.content import find_raster_type
from clew.report import Report, make_report
from clew.report.page_document import render_page
from clew.report.page_media import (
    MAX_EMBEDDED,
    MAX_EMBEDDED_BYTES,
    MAX_IMAGE_BYTES,
    MediaCollector,
    choose_ending,
)
from clew.report.report_types import EventItem, MessageItem
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.recorded import RecordedSession
from tests.support.report_page import read_data
from tests.support.threads import assistant_calls, assistant_says, tool_returns, user_says

PNG, PDF, WAV = make_png(), make_pdf(), make_wav()
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.harmed=1</script></svg>"
HTML = b"<!doctype html><script>window.harmed=1</script>"


def make_part(kind: str, data: bytes, media_type: str, **fields: Any) -> Any:
    """Make a part of a message."""
    blob = {"digest": hashlib.sha256(data).hexdigest(), "media_type": media_type, "bytes": len(data), **fields}
    return {"type": kind, "blob": blob}


IMAGE = make_part("image", PNG, "image/png", name="screen.png", width=30, height=20)
DOCUMENT = make_part("file", PDF, "application/pdf", name="invoice.pdf", pages=2)
RECORDING = make_part("audio", WAV, "audio/wav", seconds=2.0)


def write_thread() -> Thread:
    """Write a thread with parts in each place that has a content."""
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says([{"type": "text", "text": "What is wrong here?"}, IMAGE, DOCUMENT]), run="r")
    session.call(assistant_calls("tool00001"), run="r")
    result = [{"type": "text", "text": "before:"}, RECORDING, {"type": "text", "text": "after:"}, IMAGE]
    session.writer.message(tool_returns("tool00001", result), run="r")
    session.call(assistant_says([{"type": "text", "text": "It is **red**:"}, IMAGE]), run="r")
    session.writer.replace([{"role": "user", "content": [DOCUMENT]}], "default")
    return session.thread


def render(thread: Thread, data: Mapping[str, bytes], folder: Path | None = None, **options: Any) -> str:
    """Render the page of a thread, with the bytes that it needs."""
    report = make_report(thread, made_at="2026-01-02T00:00:00Z", **options)
    collector = MediaCollector(report, folder, folder.parent if folder else None)
    for digest in collector.digests:
        collector.take(digest, data[digest])
    return render_page(report, collector.media)


def find_stored(*data: bytes) -> dict[str, bytes]:
    return {hashlib.sha256(one).hexdigest(): one for one in data}


def report_images(*sizes: int) -> Report:
    """Make the report of a session with an image of each size."""
    session = RecordedSession(ContextPolicy())
    for number, size in enumerate(sizes):
        blob: Any = {"digest": f"{number:064x}", "media_type": "image/png", "bytes": size, "width": 10, "height": 10}
        session.writer.message(user_says([{"type": "image", "blob": blob}]))
    return make_report(session.thread, made_at="2026-01-02T00:00:00Z")


def test_parts_stand_in_their_order() -> None:
    """Messages, results, replies and snapshots have their parts; texts have a marker for each."""
    items = make_report(write_thread(), made_at="2026-01-02T00:00:00Z").items
    question, call, reply = [item for item in items if isinstance(item, MessageItem)]
    assert [part.media.kind if part.media else "text" for part in question.parts] == ["text", "image", "file"]
    assert "[image: screen.png, image/png, 30 x 20" in question.text.content
    assert [part.media.kind if part.media else "text" for part in call.tools[0].result_parts] == [
        *("text", "audio", "text", "image")
    ]
    assert [part.media.digest if part.media else None for part in reply.parts] == [None, IMAGE["blob"]["digest"]]
    (event,) = [item for item in items if isinstance(item, EventItem) and item.kind == "replace"]
    assert [part.media.pages for part in event.parts if part.media] == [2]


def test_fields_of_a_later_release_are_left_out() -> None:
    """A part is shown as far as this release knows it."""
    session = RecordedSession(ContextPolicy())
    session.writer.message(user_says([IMAGE]))
    *before, entry = session.thread
    later = [{**IMAGE, "alt": "a square", "blob": {**IMAGE["blob"], "frames": 12}}]
    written = Entry.from_json({**entry.as_dict(), "payload": {**entry.payload, "content": later}})
    page = render(Thread((*before, written)), find_stored(PNG))
    assert list(read_data(page)["images"]) == [IMAGE["blob"]["digest"]]
    assert "frames" not in read_data(page)["report"]["items"][-1]["parts"][0]["media"]


def test_windows_count_media() -> None:
    """A window says how many images, recordings and files its messages have."""
    report = make_report(write_thread(), made_at="2026-01-02T00:00:00Z")
    window = report.calls[-1].window
    assert window
    assert sum(segment.media + segment.cleared_media for segment in window.segments) == 4


def test_a_small_image_is_in_the_page() -> None:
    """Its bytes are in the page, which allows images from itself alone; nothing else of the session is."""
    page = render(write_thread(), find_stored(PNG))
    data, digest = read_data(page), IMAGE["blob"]["digest"]
    assert data["images"] == {digest: f"data:image/png;base64,{b64encode(PNG).decode()}"}
    assert data["links"] == {}
    assert "default-src 'none'" in page
    assert "img-src data:;" in page
    assert "img-src" not in render_page(make_report(RecordedSession(ContextPolicy()).turns(1).thread, made_at="x"))


def test_without_texts_nothing_is_shown() -> None:
    """A report without texts has no image, no digest and no name of a file, and asks for no bytes."""
    page = render(write_thread(), {}, with_texts=False)
    assert read_data(page)["images"] == {}
    assert "screen.png" not in page
    assert IMAGE["blob"]["digest"] not in page
    assert "width 30" in page


def test_files_stand_beside_the_page(tmp_path: Path) -> None:
    """With a folder each blob is written once under its digest, and linked by a relative address."""
    folder = tmp_path / "my media"
    page = render(write_thread(), find_stored(PNG, PDF, WAV), folder)
    digests = [part["blob"]["digest"] for part in (IMAGE, DOCUMENT, RECORDING)]
    names = sorted(f"{digest}.{end}" for digest, end in zip(digests, ("png", "pdf", "wav"), strict=True))
    assert sorted(file.name for file in folder.iterdir()) == names
    assert set(read_data(page)["links"].values()) == {f"./my%20media/{name}" for name in names}
    assert (folder / f"{digests[1]}.pdf").read_bytes() == PDF


@pytest.mark.parametrize(
    ("data", "media_type", "ending"),
    [
        (SVG, "image/svg+xml", "txt"),
        (SVG, "image/png", "bin"),
        (HTML, "text/html", "txt"),
        (HTML, "image/png", "bin"),
        (HTML, "application/pdf", "bin"),
        (HTML, "application/xhtml+xml", "bin"),
        (b"BM....", "image/bmp", "bin"),
        (PNG, "image/gif", "png"),
        (b"a,b", "text/csv", "txt"),
        (b"{}", "application/json", "txt"),
        (WAV, "audio/wav", "wav"),
    ],
)
def test_no_file_is_a_program(tmp_path: Path, data: bytes, media_type: str, ending: str) -> None:
    """HTML and SVG get an ending of texts or of unknown bytes, whatever type they are declared to have."""
    assert choose_ending(media_type, data) == ending
    session = RecordedSession(ContextPolicy())
    part = make_part("image", data, media_type, width=10, height=10)
    session.writer.message(user_says([part]))
    page = render(session.thread, find_stored(data), tmp_path / "media")
    (file,) = (tmp_path / "media").iterdir()
    assert file.suffix == f".{ending}"
    assert bool(read_data(page)["images"]) == (find_raster_type(data) is not None)


def test_the_newest_images_have_room() -> None:
    """Of many images those that fit are in the page, the newest first; a large one never is."""
    fitting = MAX_EMBEDDED_BYTES // MAX_IMAGE_BYTES
    collector = MediaCollector(report_images(*[MAX_IMAGE_BYTES] * (fitting + 5)))
    assert set(collector.digests) == {f"{number:064x}" for number in range(5, fitting + 5)}
    assert MediaCollector(report_images(MAX_IMAGE_BYTES + 1)).digests == []
    assert len(MediaCollector(report_images(*[100] * (MAX_EMBEDDED + 50))).digests) == MAX_EMBEDDED


def test_bytes_that_are_longer_than_described_stay_out() -> None:
    """A description cannot smuggle a large image into the page."""
    report = report_images(100)
    collector = MediaCollector(report)
    collector.take(collector.digests[0], make_png(size=MAX_IMAGE_BYTES + 1))
    assert not collector.media.images
