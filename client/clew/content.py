"""Images, recordings and files in the content of messages.

    await session.ask(["What is wrong?", Image.from_path("screen.png"), File.from_path("invoice.pdf")])

Their bytes are stored in the session's archive before the message is sent; the message names them by their digest.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from clew_workflows.contract.content import Blob, ImageDetail, MediaKind, Part
from clew_workflows.contract.errors import TooLarge

_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f/\\]+")
MAX_NAME = 255
"""Most characters of the name of a file."""


class Media:
    """The base of images, recordings and files: bytes, a path, or a blob that is stored already.

    Attributes:
        kind: The kind of the part.
        media_type: The type, such as `image/png`; None: that of the bytes, as the worker finds it.
        name: The name of the file; None: it has none.
        blob: The stored blob; None: the bytes are stored when they are sent.
    """

    kind: ClassVar[MediaKind]

    def __init__(
        self,
        *,
        data: bytes | None = None,
        path: Path | None = None,
        blob: Blob | None = None,
        media_type: str | None = None,
        name: str | None = None,
    ) -> None:
        self.media_type = media_type
        self.name = name
        self.blob = blob
        self._data = data
        self._path = path

    def __repr__(self) -> str:
        named = self.name or (self.blob["digest"][:12] if self.blob else "without a name")
        return f"<{self.kind} {named}>"

    @classmethod
    def from_path(cls, path: str | PathLike[str], *, media_type: str | None = None, name: str | None = None) -> Self:
        """Take a file. It is read when it is sent.

        Args:
            path: The file.
            media_type: Its type; None: that of its first bytes, and of a text the one of its ending.
            name: Its name; None: that of the path.
        """
        path = Path(path)
        name = clean_name(path.name if name is None else name)
        return cls(path=path, media_type=media_type or guess_text_type(path.name), name=name)

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str | None = None, name: str | None = None) -> Self:
        """Take bytes.

        Args:
            data: The bytes.
            media_type: Their type; None: that of the first bytes, and of a text the one of the name's ending.
            name: The name of the file.
        """
        name = clean_name(name) if name is not None else None
        return cls(data=data, media_type=media_type or guess_text_type(name or ""), name=name)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Take a blob that the session has, as `Session.put_blob` returns it."""
        return cls(blob=blob, media_type=blob["media_type"], name=blob.get("name"))

    def read(self, max_bytes: int | None = None) -> bytes:
        """Read the bytes.

        Args:
            max_bytes: The most bytes that are read; None: any number.

        Raises:
            OSError: The file cannot be read.
            TooLarge: There are more than `max_bytes`.
            ValueError: There are none: it is a stored blob or an address.
        """
        if self._data is None and self._path is None:
            raise ValueError(f"{self!r} has no bytes here: read them by Session.read_blob")
        data = self._data
        if data is None and self._path is not None:
            with self._path.open("rb") as file:
                data = file.read(-1 if max_bytes is None else max_bytes + 1)
        assert data is not None, "there is a path or there are bytes"
        if max_bytes is not None and len(data) > max_bytes:
            raise TooLarge(f"{self!r} has more than {max_bytes} bytes")
        return data


class Image(Media):
    """An image.

    Attributes:
        url: The address of an image that the provider fetches; None: the image has bytes.
        detail: How closely the model looks, for OpenAI's APIs; None: the provider decides.
    """

    kind = "image"
    url: str | None = None
    detail: ImageDetail | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Take the address of an image, for providers that fetch one. Clew cannot prove what it showed."""
        image = cls()
        image.url = url
        return image


class Audio(Media):
    """A recording."""

    kind = "audio"


class File(Media):
    """A document or another file."""

    kind = "file"


def make_media(part: Part) -> Media | None:
    """Make the image, the recording or the file that a part of a message names; None: it is a text."""
    if part["type"] == "text":
        return None
    if (url := part.get("url")) is not None:
        media: Media = Image.from_url(str(url))
    else:
        blob: Any = part["blob"]
        kinds: dict[str, type[Media]] = {"image": Image, "audio": Audio, "file": File}
        media = kinds[part["type"]].from_blob(blob)
    if isinstance(media, Image) and part["type"] == "image":
        media.detail = part.get("detail")
    return media


ContentPart: TypeAlias = str | Media | Mapping[str, Any]
"""A part of a message: a text, an image, a recording, a file, or a part of the contract as JSON."""
AnyContent: TypeAlias = ContentPart | Sequence[ContentPart]
"""The content of a message: a part, or parts in their order."""


def guess_text_type(name: str) -> str | None:
    """Guess the type of a text by the ending of its name; None: it is no text, or not known.

    Only texts have no first bytes that a worker could tell their type by.
    """
    media_type, encoding = mimetypes.guess_type(name)
    if encoding or not media_type:
        return None
    return media_type if media_type.startswith("text/") or media_type == "application/json" else None


def find_raster_type(data: bytes) -> str | None:
    """Find the type of an image that every browser shows and none runs, by its first bytes; None: it is another."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def clean_name(name: str) -> str | None:
    """Make a name that messages can have: the last part of a path, without control characters; None: it has none."""
    name = _NOT_IN_NAMES.sub("_", re.split(r"[/\\]", name.strip())[-1])[:MAX_NAME]
    return name if name.strip(".") else None
