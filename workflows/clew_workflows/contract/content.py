"""The content of messages: a text, or a list of parts, which name the blobs of images, audio and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, Protocol, TypeAlias, cast

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SkipValidation,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from clew_workflows.contract.errors import UnknownBlob
from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_IMAGE_URL_CHARACTERS, MAX_PARTS

MediaKind = Literal["image", "audio", "file"]
"""The kinds of parts beside texts."""
MediaSort = Literal["image", "audio", "pdf", "text", "other"]
"""What a part shows, by the media type of its blob: models differ in which of them they take."""
Digest = Annotated[str, Form(r"^[0-9a-f]{64}$", "a digest has 64 hexadecimal digits, in lower case")]
_DIGEST = re.compile("[0-9a-f]{64}")
MediaType = Annotated[
    str, Form(r"^[a-z]+/[a-z0-9][a-z0-9.+-]{0,99}$", "a media type is two names in lower case, for example image/png")
]
BlobName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=255),
    Form(r"^[^\x00-\x1f\x7f/\\]+$", "a file's name has no slashes and no control characters"),
]
_ImageUrl = Annotated[
    str,
    StringConstraints(max_length=MAX_IMAGE_URL_CHARACTERS),
    Form(r"^https://[!-~]+$", "the address of an image begins with https:// and has no spaces"),
]
_STRICT = ConfigDict(extra="forbid", strict=True)
_TEXTS = re.compile(
    r"text/.+|application/(json|xml|yaml|x-yaml|toml|sql|javascript|x-javascript|typescript|x-sh|x-httpd-php|rtf"
    r"|x-ndjson|jsonl|graphql|x-tex|x-python|x-latex|[a-z0-9.-]+\+(json|xml|yaml))"
)


@with_config(_STRICT)
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


@with_config(_STRICT)
class TextPart(TypedDict):
    """A text.

    Attributes:
        type: Always `text`.
        text: The text.
    """

    type: Literal["text"]
    text: str


ImageDetail = Literal["auto", "low", "high", "original"]


@with_config(_STRICT)
class ImagePart(TypedDict):
    """An image: a blob, or the address of an image that the provider fetches.

    Attributes:
        type: Always `image`.
        blob: The blob.
        url: The address, for providers that take one. Clew never fetches it, and cannot prove what it showed.
        detail: How closely the model looks, for OpenAI's APIs. Other providers have no such choice.
    """

    type: Literal["image"]
    blob: NotRequired[Blob]
    url: NotRequired[_ImageUrl]
    detail: NotRequired[ImageDetail]


@with_config(_STRICT)
class AudioPart(TypedDict):
    """A recording.

    Attributes:
        type: Always `audio`.
        blob: The blob.
    """

    type: Literal["audio"]
    blob: Blob


@with_config(_STRICT)
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


_part: TypeAdapter[Part] = TypeAdapter(Part)
_FIELDS = {"type", "text", "blob", "url"}


def _check_stored(parts: list[Part]) -> list[Part]:
    """Check that parts have the types that readers rely on; fields that a later release wrote are ignored.

    Raises:
        ValueError: One has not.
    """
    for number, part in enumerate(parts):
        try:
            _part.validate_python(_select_known(part))
        except ValidationError:
            raise ValueError(f"part {number} is none that this version of Clew knows") from None
        if has_no_source(part):
            raise ValueError(f"part {number} is an image without a blob or a url, or with both")
    return parts


def _select_known(part: object) -> object:
    if not isinstance(part, dict):
        return part
    known = {name: value for name, value in part.items() if name in _FIELDS}
    if isinstance(blob := known.get("blob"), dict):
        known["blob"] = {name: value for name, value in blob.items() if name in Blob.__annotations__}
    return known


def has_no_source(part: Part) -> bool:
    """Whether a part is an image that has neither a blob nor an address, or both."""
    return part["type"] == "image" and ("blob" in part) == ("url" in part)


Content: TypeAlias = str | Annotated[list[SkipValidation[Part]], AfterValidator(_check_stored)]
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


def join_texts(content: Content) -> str:
    """Join the texts of the content, without markers for the other parts."""
    return (
        content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["type"] == "text")
    )


SHOWN_DIGITS = 12
"""Digits of a digest that name a part."""
_SHOWN_CHARACTERS = 200


def get_blob(part: Part) -> Blob | None:
    """Return the blob that a part names; None for a text and an image at an address."""
    blob: Any = part.get("blob")
    return cast("Blob | None", blob)


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


def name_part(part: Part) -> str:
    """Name an image, a recording or a file in a record: the first digits of its digest, or the address."""
    blob = get_blob(part)
    return blob["digest"][:SHOWN_DIGITS] if blob else str(part.get("url", ""))[:_SHOWN_CHARACTERS]


def iterate_blobs(contents: Iterable[Content]) -> Iterator[Blob]:
    """Iterate over the blobs that contents name, in order."""
    for content in contents:
        for part in list_media(content):
            if blob := get_blob(part):
                yield blob


_parts: TypeAdapter[list[Part]] = TypeAdapter(Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS)])


def read_parts(value: object) -> list[Part] | None:
    """Read a JSON value as parts; None: it is not a list of parts, or all of them are texts."""
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        return None
    try:
        parts = _parts.validate_python(value)
    except ValidationError:
        return None
    media = list_media(parts)
    return parts if media and not any(map(has_no_source, media)) else None


def is_empty(content: Content) -> bool:
    """Whether the content has no text beside white space, and nothing else."""
    if isinstance(content, str):
        return not content.strip()
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
        joined += list_parts(content)
    return joined


def list_parts(content: Content) -> list[Part]:
    """List the parts of a content; of a text the one that it is."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


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


# Reading blobs, for the functions of a team: tools and hooks.


class BlobReader(Protocol):
    """Reads the blobs of one session's family."""

    async def read(self, digest: str) -> bytes:
        """Read a blob, from any event loop."""
        ...

    def read_sync(self, digest: str) -> bytes:
        """Read a blob, and block the thread meanwhile."""
        ...


class ReadsBlobs:
    """The base of what functions get that may read the blobs of the session."""

    __slots__ = ()

    async def read_blob(self, blob: Any) -> bytes:
        """Read a blob of the session, or of one that it shares its archive with, in an async function.

        Args:
            blob: The blob's digest, its description, or an image, a recording, a file or a part that names it.

        Raises:
            ArchiveDamaged: The stored bytes are not those of the digest.
            ArchiveUnavailable: The archive cannot be read at present.
            UnknownBlob: The session has no such blob.
        """
        return await self._get_reader().read(get_digest(blob))

    def read_blob_sync(self, blob: Any) -> bytes:
        """Read a blob as `read_blob` does, in a function that is not async. It blocks the thread."""
        return self._get_reader().read_sync(get_digest(blob))

    def _get_reader(self) -> BlobReader:
        reader: BlobReader | None = getattr(self, "_blobs", None)
        if reader is None:
            raise RuntimeError("blobs are read on a worker: this object was made outside of one")
        return reader


def get_digest(blob: Any) -> str:
    """Return the digest of what names a blob: the digest itself, a description, a part, or a client's media.

    Raises:
        UnknownBlob: It names none.
    """
    named = getattr(blob, "blob", blob)
    if isinstance(named, Mapping):
        named = named.get("blob", named)
    digest = named.get("digest") if isinstance(named, Mapping) else named
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise UnknownBlob(f"{str(blob)[:100]!r} names no blob: a digest has 64 hexadecimal digits")
    return digest
