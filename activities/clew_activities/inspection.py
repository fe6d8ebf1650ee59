"""Inspection: what the bytes of a blob are, by their first bytes and their headers. Nothing is decoded.

| module | holds |
|---|---|
| `file_types` | the types |
| `inspection` | which of the declared and the found type stands, and the sizes of images |
| `inspection_process` | the pages of PDF files and the length of recordings, in a child process within limits |

A blob has the type of its first bytes. The type that the caller declares must be that one, or another name of it; of
texts, which have no signature, it may be any type of text. A file that is not taken is refused by its name.
"""

from __future__ import annotations

import asyncio
import io
from typing import Any, TypedDict

import imagesize  # type: ignore[import-untyped]
from pydantic_core import from_json

from clew.child_process import Limits, run_child
from clew_activities import inspection_process
from clew_activities.file_types import find_encoding, find_text_type, find_type, name_refused
from clew_activities.inspection_process import MAX_LENGTH_SECONDS, MAX_PAGES
from clew_workflows.contract.content import is_text_type
from clew_workflows.contract.errors import ContentMismatch, TooLarge, UnsupportedContent
from clew_workflows.contract.limits import MAX_BLOB_BYTES

MAX_SIDE = 100_000
"""Most pixels of an image from left to right, and from top to bottom."""
MAX_PIXELS = 250_000_000
"""Most pixels of an image."""
_LIMITS = Limits(memory_bytes=768 * 1024 * 1024, cpu_seconds=5, seconds=20)
"""Limits of a child process that reads the headers of a file."""
MAX_CHILDREN = 2
"""Most inspections in child processes at the same time; others wait."""
_HEADER_BYTES = 1_000_000
"""Bytes that the size of an image is read from; of a TIFF file, whose directory may be at its end, all are."""

_OTHER_NAMES = {
    "application/x-pdf": "application/pdf",
    "application/csv": "text/csv",
    # What browsers on Windows declare of a CSV file. A workbook is refused by its first bytes.
    "application/vnd.ms-excel": "text/csv",
    "application/x-csv": "text/csv",
    "audio/aacp": "audio/aac",
    "audio/x-aac": "audio/aac",
    "audio/x-hx-aac-adts": "audio/aac",
    "audio/x-aiff": "audio/aiff",
    "audio/mp3": "audio/mpeg",
    "audio/mpeg3": "audio/mpeg",
    "audio/mpg": "audio/mpeg",
    "audio/x-mp3": "audio/mpeg",
    "audio/x-mpeg": "audio/mpeg",
    "audio/x-mpeg-3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/x-flac": "audio/flac",
    "audio/m4a": "audio/mp4",
    "audio/x-m4a": "audio/mp4",
    "audio/opus": "audio/ogg",
    "application/ogg": "audio/ogg",
    "image/heif": "image/heic",
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-ms-bmp": "image/bmp",
    "image/apng": "image/png",
    "image/vnd.mozilla.apng": "image/png",
    "image/x-png": "image/png",
    "image/x-tiff": "image/tiff",
}
_WIDER = {
    ("audio/mp4", "video/mp4"),
    ("video/mp4", "audio/mp4"),
    ("audio/mp4", "video/quicktime"),
    ("video/quicktime", "video/mp4"),
    ("video/mp4", "video/quicktime"),
    ("audio/3gpp", "video/mp4"),
    ("video/3gpp", "video/mp4"),
    ("audio/webm", "video/webm"),
    ("video/ogg", "audio/ogg"),
}
"""Pairs of a declared type and that of the first bytes, which do not say what tracks the file has."""
_UNKNOWN = ("application/octet-stream", "binary/octet-stream")


class Inspected(TypedDict, total=False):
    """What the bytes of a blob are: the fields of its description that the bytes determine."""

    media_type: str
    bytes: int
    width: int
    height: int
    pages: int
    seconds: float


class Inspection:
    """Inspects blobs."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_CHILDREN)

    async def inspect(self, data: bytes) -> Inspected:
        """Inspect a blob.

        Raises:
            ContentMismatch: It begins like an image, and its header has no size.
            TooLarge: It is larger than a blob or an image may be.
            UnsupportedContent: No model can read a file of its type.
        """
        if not data:
            raise UnsupportedContent("the blob is empty")
        if len(data) > MAX_BLOB_BYTES:
            raise TooLarge(f"the blob has {len(data)} bytes, at most {MAX_BLOB_BYTES} are stored")
        media_type = await asyncio.to_thread(_find_any_type, data)
        if media_type is None:
            raise UnsupportedContent(name_refused(data))
        inspected = Inspected(media_type=media_type, bytes=len(data))
        if media_type.startswith("image/"):
            inspected["width"], inspected["height"] = measure_image(data, media_type)
        elif media_type == "application/pdf":
            inspected["pages"] = await self._ask_child(data, "pages")
        elif media_type.startswith("audio/") or media_type == "video/mp4":
            inspected["seconds"] = await self._ask_child(data, "seconds")
        return {name: value for name, value in inspected.items() if value}  # type: ignore[return-value]

    async def _ask_child(self, data: bytes, question: str) -> Any:
        """Have a child process read a number from the headers of a file; None: it has found none in its limits."""
        async with self._slots:
            output = await run_child(inspection_process.__file__, question.encode() + b"\n" + data, _LIMITS)
        try:
            answer = from_json(output)
        except ValueError:
            return None
        # A file may have taken the child process over: its answer is checked as a number.
        number: Any = answer.get(question) if isinstance(answer, dict) else None
        kinds, most = ((int,), MAX_PAGES) if question == "pages" else ((int, float), MAX_LENGTH_SECONDS)
        return number if type(number) in kinds and 0 < number <= most else None


def _find_any_type(data: bytes) -> str | None:
    """Find the type of a file; None: it is none that Clew takes."""
    if media_type := find_type(data):
        return media_type
    if data.startswith(b"#!") or (encoding := find_encoding(data)) is None:
        return None
    return find_text_type(data.decode(encoding))


def measure_image(data: bytes, media_type: str) -> tuple[int, int]:
    """Read the size of an image in pixels from its header, as it is shown.

    Raises:
        ContentMismatch: The header has no size.
        TooLarge: The image has too many pixels.
    """
    width, height = imagesize.get(io.BytesIO(data if media_type == "image/tiff" else data[:_HEADER_BYTES]))
    if width < 1 or height < 1:
        raise ContentMismatch(f"the blob begins like {media_type}, and its header is damaged: it has no size")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise TooLarge(
            f"the image has {width} x {height} pixels: at most {MAX_SIDE} on a side and {MAX_PIXELS} are stored"
        )
    return width, height


def choose_type(declared: str | None, inspected: str) -> str:
    """Choose the type of a blob: the declared one if the bytes may have it, else the one that the bytes have.

    Raises:
        ContentMismatch: The bytes have another type than the declared one.
        UnsupportedContent: It is declared as SVG, which is a program for browsers.
    """
    if declared == "image/svg+xml":
        raise UnsupportedContent("no model can read SVG as an image: send a PNG, or the text as text/xml")
    if declared is None or declared in _UNKNOWN:
        return inspected
    name = _OTHER_NAMES.get(declared, declared)
    if name == inspected or (name, inspected) in _WIDER:
        return name
    if is_text_type(inspected) and is_text_type(name):
        return name
    raise ContentMismatch(f"the blob is declared as {declared}, and its first bytes are those of {inspected}")
