"""Images, recordings and files as tools and models send them: bytes in base64, before they are stored as blobs."""

from __future__ import annotations

import base64
import binascii
import io
import re
import wave
from dataclasses import dataclass
from typing import Any

from clew_workflows.contract.content import Blob, MediaKind, Part
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from clew_workflows.session.named_blobs import check_kinds

_MAX_REASON = 500
"""Characters of the reason why a part is not there."""
_DATA_URL = re.compile(r"data:([^;,]{0,100})(?:;[^;,]{0,100}){0,8};base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NewMedia:
    """An image, a recording or a file that is not stored yet.

    Attributes:
        kind: The kind of the part.
        data: The bytes.
        media_type: The type that they are declared to have; None: the one that they have.
        name: The name of the file.
    """

    kind: MediaKind
    data: bytes
    media_type: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Unusable:
    """An image, a recording or a file that cannot be a part.

    Attributes:
        kind: What it was to be.
        reason: What is wrong, for the model.
    """

    kind: str
    reason: str

    @property
    def text(self) -> str:
        """The text that stands in its place."""
        return f"[{self.kind}: it is not shown: {self.reason[:_MAX_REASON]}]"


def decode_base64(
    kind: MediaKind, text: object, media_type: str | None = None, name: str | None = None
) -> NewMedia | Unusable:
    """Decode bytes that came as base64, with or without padding and line breaks."""
    if not isinstance(text, str) or not text:
        return Unusable(kind, "it has no data")
    if len(text) > MAX_BLOB_BYTES * 3 // 2:
        return Unusable(kind, f"it has more than {MAX_BLOB_BYTES} bytes")
    packed = "".join(text.split()).rstrip("=")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (ValueError, binascii.Error):
        return Unusable(kind, "its data is not base64")
    return NewMedia(kind, data, media_type, name)


def split_data_url(url: str) -> tuple[str | None, str] | None:
    """Split a data URL into its declared type and its base64; None: it is none."""
    found = _DATA_URL.match(url[:1000])
    return (found[1].lower() or None, url[found.end() :]) if found else None


def wrap_samples(samples: bytes, rate: int) -> bytes:
    """Make a WAV file of samples of one channel, 16 bits each."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples[: len(samples) // 2 * 2])
    return file.getvalue()


def make_part(kind: MediaKind, blob: Blob) -> Part:
    """Make the part of a stored blob.

    Raises:
        UnsupportedContent: The blob cannot be of that kind.
    """
    part: Any = {"type": kind, "blob": blob}
    check_kinds([[part]])
    made: Part = part
    return made
