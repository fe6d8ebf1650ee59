"""The images, recordings and files of a report's page: which are embedded, and which are written beside it.

The page embeds small images of four types, after their first bytes have been checked. All other bytes are files. They
are named by their digests, with an ending that no browser runs: HTML and SVG become `.txt`.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from clew.content import find_raster_type
from clew.report.report_types import EventItem, Item, Media, Piece, Report

MAX_IMAGE_BYTES = 200_000
"""Largest image that a page embeds, in bytes."""
MAX_EMBEDDED_BYTES = 4_000_000
"""Most bytes of all images that a page embeds; the newest have priority."""
MAX_EMBEDDED = 200
"""Most images that a page embeds."""
MAX_PIXELS = 25_000_000
"""Most pixels of an image that a page embeds: a browser takes four bytes for each."""
_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "application/pdf": "pdf",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mp4": "m4a",
    "audio/webm": "weba",
    "video/mp4": "mp4",
    "video/webm": "webm",
}
_TEXTS = ("application/json", "application/xml", "application/yaml", "image/svg+xml")


@dataclass(slots=True)
class PageMedia:
    """The bytes of a report's images, recordings and files, as far as the page has them.

    Attributes:
        images: The `data:` addresses of embedded images, by digest.
        links: The relative addresses of files beside the page, by digest.
    """

    images: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


class MediaCollector:
    """Takes the bytes that a report's page needs, one blob after the other.

    Attributes:
        media: The result.
    """

    def __init__(self, report: Report, folder: Path | None = None, page_folder: Path | None = None) -> None:
        """Make a collector.

        Args:
            report: The report. Without texts its page has no bytes.
            folder: The folder for all blobs that the report shows; None: none is written.
            page_folder: The folder of the page, from which files are linked.
        """
        self.media = PageMedia()
        self._folder = folder
        self._page_folder = page_folder or Path()
        blobs = {part.digest: part for part in list_media(report.items) if part.digest} if report.has_texts else {}
        self._embedded = set(_choose_embedded(blobs.values()))
        self._blobs = blobs if folder else {digest: blobs[digest] for digest in self._embedded}

    @property
    def digests(self) -> list[str]:
        """The digests of the blobs that the page needs, the newest first."""
        return list(self._blobs)

    def take(self, digest: str, data: bytes) -> None:
        """Take the bytes of a blob, whose digest the caller has verified. Others than those needed are ignored.

        Raises:
            OSError: The file cannot be written.
        """
        part = self._blobs.get(digest)
        if part is None:
            return
        if digest in self._embedded and len(data) <= MAX_IMAGE_BYTES and (found := find_raster_type(data)):
            self.media.images[digest] = f"data:{found};base64,{b64encode(data).decode()}"
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._folder / f"{digest}.{choose_ending(part.media_type or '', data)}"
            file.write_bytes(data)
            relative = os.path.relpath(file.resolve(), self._page_folder.resolve())
            # A first part with a colon would be read as a scheme.
            self.media.links[digest] = f"./{quote(Path(relative).as_posix())}"


def list_media(items: Iterable[Item]) -> Iterator[Media]:
    """List the images, recordings and files that items show, the newest first."""
    for item in reversed(list(items)):
        parts: list[Piece] = [*item.parts]
        if not isinstance(item, EventItem):
            parts += (part for tool in item.tools for part in tool.result_parts)
        yield from (part.media for part in reversed(parts) if part.media)


def _choose_embedded(media: Iterable[Media]) -> Iterator[str]:
    """Choose the images that are embedded, by their descriptions."""
    room, count = MAX_EMBEDDED_BYTES, 0
    for part in media:
        size, pixels = part.bytes or 0, (part.width or 0) * (part.height or 0)
        is_small = size <= min(MAX_IMAGE_BYTES, room) and 0 < pixels <= MAX_PIXELS
        if part.kind == "image" and part.digest and is_small and count < MAX_EMBEDDED:
            room, count = room - size, count + 1
            yield part.digest


def choose_ending(media_type: str, data: bytes) -> str:
    """Choose the ending of a blob's file. It says what the first bytes are, and never names a program."""
    if media_type.startswith("image/"):
        return _ENDINGS.get(find_raster_type(data) or "", "txt" if media_type in _TEXTS else "bin")
    if media_type.startswith("text/") or media_type in _TEXTS:
        return "txt"
    if media_type == "application/pdf" and not data.startswith(b"%PDF-"):
        return "bin"
    return _ENDINGS.get(media_type, "bin")
