"""Inspection: what the bytes of a blob are, by their first bytes and their headers. Nothing is decoded.

| module | holds |
|---|---|
| `inspection` | the types, and the sizes of images |
| `inspection_process` | the pages of PDF files and the length of recordings, in a child process within limits |

A blob has the type of its first bytes. The type that the caller declares must be that one, or another name of it; of
texts, which have no signature, it may be any type of text.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import re
from typing import Any, TypedDict

import imagesize  # type: ignore[import-untyped]
from pydantic_core import from_json

from clew.child_process import Limits, run_child
from clew_activities import inspection_process
from clew_activities.inspection_process import MAX_LENGTH_SECONDS, MAX_PAGES
from clew_workflows.contract.content import MAX_BLOB_BYTES, is_text_type
from clew_workflows.contract.errors import ContentMismatch, TooLarge, UnsupportedContent

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
_TAIL_BYTES = 65_536
"""Bytes at the end of a ZIP file in which the names of its members are looked for."""

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
)
_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp"}
_BRANDS = {
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"heim": "image/heic",
    b"heis": "image/heic",
    b"mif1": "image/heic",
    b"msf1": "image/heic",
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"M4A ": "audio/mp4",
    b"M4B ": "audio/mp4",
    b"qt  ": "video/quicktime",
}
_MP4_BRANDS = (
    b"isom",
    b"iso2",
    b"iso4",
    b"iso5",
    b"iso6",
    b"mp41",
    b"mp42",
    b"avc1",
    b"dash",
    b"M4V ",
    b"3gp",
    b"MSNV",
)
_OFFICE = "application/vnd.openxmlformats-officedocument."
_ZIPPED: tuple[tuple[bytes, str], ...] = (
    (b"word/", f"{_OFFICE}wordprocessingml.document"),
    (b"xl/", f"{_OFFICE}spreadsheetml.sheet"),
    (b"ppt/", f"{_OFFICE}presentationml.presentation"),
)
_OPEN_DOCUMENTS = re.compile(rb"mimetype(application/(?:epub\+zip|vnd\.oasis\.opendocument\.[a-z]{1,20}))")
_OTHER_NAMES = {
    "application/x-pdf": "application/pdf",
    "audio/mp3": "audio/mpeg",
    "audio/x-mp3": "audio/mpeg",
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
    "image/x-png": "image/png",
}
_WIDER = {("audio/mp4", "video/mp4"), ("audio/webm", "video/webm"), ("video/ogg", "audio/ogg")}
"""Pairs of a declared type and that of the first bytes, which do not say what tracks the file has."""
_UNKNOWN = ("application/octet-stream", "binary/octet-stream")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_EXECUTABLES = (b"MZ", b"\x7fELF", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\0asm", b"#!")


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
        media_type = find_type(data)
        if media_type is None and await asyncio.to_thread(is_text, data):
            media_type = find_text_type(data)
        if media_type is None or data.startswith(_EXECUTABLES):
            raise UnsupportedContent("no model can read a file of this type, by its first bytes")
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


def find_type(data: bytes) -> str | None:
    """Find the type that the first bytes name; None: it is a text, or a type that Clew does not know."""
    for offset, signature, media_type in _SIGNATURES:
        if data.startswith(signature, offset):
            return media_type
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return _BRANDS.get(brand) or ("video/mp4" if brand.startswith(_MP4_BRANDS) else None)
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "video/webm" if b"webm" in data[:64] else None
    if data[:4] == b"PK\x03\x04":
        return _find_zipped_type(data)
    # A frame of MPEG audio: the sync word, a version and a layer that exist, a bit rate and a sampling rate.
    if (
        len(data) > 4
        and data[0] == 0xFF
        and data[1] & 0xE0 == 0xE0
        and data[1] & 0x18 != 0x08
        and data[1] & 0x06
        and data[2] & 0xF0 not in (0, 0xF0)
        and data[2] & 0x0C != 0x0C
    ):
        return "audio/mpeg"
    return None


def _find_zipped_type(data: bytes) -> str | None:
    if match := _OPEN_DOCUMENTS.search(data[:200]):
        return match[1].decode()
    names = data[:_TAIL_BYTES] + data[-_TAIL_BYTES:]
    if b"[Content_Types].xml" not in names:
        return None
    return next((media_type for folder, media_type in _ZIPPED if folder in names), None)


def is_text(data: bytes) -> bool:
    """Whether the bytes are text in UTF-8, without control characters."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), _HEADER_BYTES):
            piece = decoder.decode(data[start : start + _HEADER_BYTES], final=start + _HEADER_BYTES >= len(data))
            if _CONTROLS.search(piece):
                return False
    except UnicodeDecodeError:
        return False
    return True


def find_text_type(data: bytes) -> str:
    """Find the type of a text by its beginning: HTML, XML, which SVG is, JSON, or plain."""
    start = data[:2000].decode("utf-8", "ignore").lstrip("\ufeff \t\r\n").lower()
    if re.match(r"<!doctype html|<html\b|<script\b|<body\b", start):
        return "text/html"
    if start.startswith(("<?xml", "<svg", "<!doctype svg")):
        return "application/xml"
    if start[:1] in ("{", "[") and len(data) < _HEADER_BYTES:
        try:
            from_json(data)
        except ValueError:
            return "text/plain"
        return "application/json"
    return "text/plain"


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
