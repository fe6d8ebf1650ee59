"""The content of messages: a text, or a list of parts, which name the blobs of images, audio and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, Field, SkipValidation, StringConstraints, with_config
from typing_extensions import TypedDict

MAX_PARTS = 100
"""Most parts of a message."""
MAX_BLOB_BYTES = 50 * 1024 * 1024
"""Largest blob, in bytes."""
MAX_MESSAGE_BLOB_BYTES = 100 * 1024 * 1024
"""Most bytes of the blobs of one message."""
MAX_URL_CHARACTERS = 8192

MediaKind = Literal["image", "audio", "file"]
"""The kinds of parts beside texts."""
MediaSort = Literal["image", "audio", "pdf", "text", "other"]
"""What a part shows, by the media type of its blob: models differ in which of them they take."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MediaType = Annotated[str, StringConstraints(pattern=r"^[a-z]+/[a-z0-9][a-z0-9.+-]{0,99}$")]
BlobName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f/\\]+$")]
_FORBID = ConfigDict(extra="forbid")
_TEXTS = re.compile(
    r"text/.+|application/(json|xml|yaml|x-yaml|toml|sql|javascript|x-javascript|typescript|x-sh|x-httpd-php|rtf"
    r"|x-ndjson|jsonl|graphql|x-tex|x-python|x-latex|[a-z0-9.-]+\+(json|xml|yaml))"
)


@with_config(_FORBID)
class Blob(TypedDict):
    """The description of bytes in the archive. The bytes are never in a message.

    Attributes:
        digest: SHA-256 of the bytes, as 64 hexadecimal digits.
        media_type: The type of the bytes, such as `image/png`.
        bytes: Their number.
        name: The name of the file.
        width: Pixels of an image from left to right.
        height: Pixels of an image from top to bottom.
        pages: Pages of a document.
        seconds: Length of audio.
    """

    digest: Digest
    media_type: MediaType
    bytes: Annotated[int, Field(ge=1, le=MAX_BLOB_BYTES)]
    name: NotRequired[BlobName]
    width: NotRequired[Annotated[int, Field(ge=1, le=100_000)]]
    height: NotRequired[Annotated[int, Field(ge=1, le=100_000)]]
    pages: NotRequired[Annotated[int, Field(ge=1, le=100_000)]]
    seconds: NotRequired[Annotated[float, Field(gt=0, le=1_000_000)]]


@with_config(_FORBID)
class TextPart(TypedDict):
    """A text.

    Attributes:
        type: Always `text`.
        text: The text.
    """

    type: Literal["text"]
    text: str


@with_config(_FORBID)
class ImagePart(TypedDict):
    """An image: a blob, or the address of an image that the provider fetches.

    Attributes:
        type: Always `image`.
        blob: The blob.
        url: The address, for providers that take one. Clew never fetches it, and cannot prove what it showed.
    """

    type: Literal["image"]
    blob: NotRequired[Blob]
    url: NotRequired[Annotated[str, StringConstraints(pattern=r"^https://[!-~]+$", max_length=MAX_URL_CHARACTERS)]]


@with_config(_FORBID)
class AudioPart(TypedDict):
    """A recording.

    Attributes:
        type: Always `audio`.
        blob: The blob.
    """

    type: Literal["audio"]
    blob: Blob


@with_config(_FORBID)
class FilePart(TypedDict):
    """A document or another file.

    Attributes:
        type: Always `file`.
        blob: The blob.
    """

    type: Literal["file"]
    blob: Blob


Part = Annotated[TextPart | ImagePart | AudioPart | FilePart, Field(discriminator="type")]
"""A part of a message."""
Content: TypeAlias = str | list[SkipValidation[Part]]
"""The content of a message: a text, or its parts in their order."""


def is_text_type(media_type: str) -> bool:
    """Whether blobs of a type are texts."""
    return _TEXTS.fullmatch(media_type) is not None


def get_text(content: Content) -> str:
    """Return the content as a text, in which a marker stands for each image, recording and file."""
    return content if isinstance(content, str) else "\n".join(map(describe_part, content))


def get_opening(content: Content) -> str:
    """Return the text that titles begin with: the texts of a content, or without any the markers of its parts."""
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content if part["type"] == "text"]
    return "\n".join(texts) if any(map(str.strip, texts)) else get_text(content)


def describe_part(part: Part) -> str:
    """Return the text of a part; of an image, a recording or a file the marker that names it."""
    if part["type"] == "text":
        return part["text"]
    blob: Any = part.get("blob")
    if blob is None:
        return f"[{part['type']}: {str(part.get('url', ''))[:200]}]"
    details = [blob["media_type"]]
    if "width" in blob and "height" in blob:
        details.append(f"{blob['width']} x {blob['height']}")
    if "pages" in blob:
        details.append(f"{blob['pages']} pages")
    if "seconds" in blob:
        details.append(f"{blob['seconds']:g} seconds")
    name = blob.get("name") or blob["digest"][:12]
    return f"[{part['type']}: {name}, {', '.join(details)}, {blob['bytes']} bytes]"


def find_sort(part: Part) -> MediaSort:
    """Find what a part shows: by the media type of its blob, or an image that has an address."""
    blob: Any = part.get("blob")
    if blob is None:
        return "image" if part["type"] == "image" else "text"
    media_type: str = blob["media_type"]
    match media_type.partition("/")[0]:
        case "image":
            return "image"
        case "audio":
            return "audio"
    if media_type == "application/pdf":
        return "pdf"
    return "text" if is_text_type(media_type) else "other"


def list_media(content: Content) -> list[Part]:
    """List the parts that are no texts, in order."""
    return [] if isinstance(content, str) else [part for part in content if part["type"] != "text"]


def iterate_blobs(contents: Iterable[Content]) -> Iterator[Blob]:
    """Iterate over the blobs that contents name, in order."""
    for content in contents:
        for part in list_media(content):
            blob: Any = part.get("blob")
            if blob is not None:
                yield blob


def is_empty(content: Content) -> bool:
    """Whether the content has no text beside white space, and nothing else."""
    return not list_media(content) and not get_text(content).strip()


def strip_content(content: Content) -> Content:
    """Remove the white space around a text; of parts, the texts that are white space alone."""
    if isinstance(content, str):
        return content.strip()
    return [part for part in content if part["type"] != "text" or part["text"].strip()]


def join_contents(contents: Iterable[Content], separator: str) -> Content:
    """Join contents; texts stay one text."""
    shown = [content for content in contents if not is_empty(content)]
    texts = [content for content in shown if isinstance(content, str)]
    if len(texts) == len(shown):
        return separator.join(texts)
    joined: list[Part] = []
    for content in shown:
        joined += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return joined


def prefix_text(prefix: str, content: Content) -> Content:
    """Put a text before the content."""
    if not prefix or isinstance(content, str):
        return prefix + content if isinstance(content, str) else content
    return [{"type": "text", "text": prefix}, *content]


def append_text(content: Content, suffix: str) -> Content:
    """Put a text behind the content."""
    if not suffix or isinstance(content, str):
        return content + suffix if isinstance(content, str) else content
    return [*content, {"type": "text", "text": suffix}]


TOKENS_PER_IMAGE = 1600
"""Tokens of an image whose size is not known."""
_TOKENS_PER_PAGE = 2000
_TOKENS_PER_SECOND = 32
_PIXELS_PER_TOKEN = 750


def count_media(part: Mapping[str, Any]) -> int:
    """Estimate the tokens of an image, a recording or a file in a context; 0 for a text."""
    blob = part.get("blob") or {}
    match part["type"]:
        case "text":
            return 0
        case "image" if "width" in blob and "height" in blob:
            return min(max(int(blob["width"] * blob["height"]) // _PIXELS_PER_TOKEN, 85), TOKENS_PER_IMAGE)
        case "audio":
            return int(blob.get("seconds", blob.get("bytes", 0) / 16_000) * _TOKENS_PER_SECOND) + 1
        case "file":
            return int(blob.get("pages", 1)) * _TOKENS_PER_PAGE
    return TOKENS_PER_IMAGE
