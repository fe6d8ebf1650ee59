"""Convert parts: those of a thread to AG-UI's, and those that a client sends to the content of a message. Pure.

A client sends bytes in its message, or names a blob of the session as a file of the provider `clew`. It gets parts
that name blobs, or their addresses, and no bytes: messages come again with every input.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from ag_ui.core import (
    AudioPart,
    ContentPart,
    DataSource,
    DocumentPart,
    FileSource,
    ImagePart,
    PartSource,
    TextPart,
    UrlSource,
    VideoPart,
)
from pydantic import TypeAdapter, ValidationError

from clew.content import AnyContent, Audio, File, Image, Media
from clew_workflows.contract.content import Blob, Content, Part
from clew_workflows.contract.errors import InvalidInput, TooLarge, UnsupportedContent
from clew_workflows.contract.limits import MAX_BLOB_BYTES

PROVIDER = "clew"
"""The provider of files that are blobs of the session."""
BLOB = "clew.blob"
"""The metadata of a part with the description of its blob."""
FILE_NAME = "filename"
"""The metadata of a part with the name of its file."""

BlobUrl: TypeAlias = Callable[[Blob], str | None]
"""Makes the address at which a client reads a blob; None: it has none."""
_MEDIA: dict[str, type[Media]] = {"image": Image, "audio": Audio, "video": File, "document": File}
_blobs: TypeAdapter[Blob] = TypeAdapter(Blob)


def convert_content(content: Content, blob_url: BlobUrl | None = None) -> str | list[ContentPart]:
    """Convert the content of a message; a text stays one."""
    return content if isinstance(content, str) else [convert_part(part, blob_url) for part in content]


def convert_part(part: Part, blob_url: BlobUrl | None = None) -> ContentPart:
    """Convert a part of a message. Its source is an address, or the blob as a file of the provider `clew`."""
    if part["type"] == "text":
        return TextPart(text=part["text"])
    blob: Any = part.get("blob")
    if blob is None:
        return ImagePart(source=UrlSource(value=str(part.get("url"))))
    url = blob_url(blob) if blob_url else None
    source: PartSource = (
        UrlSource(value=url, mime_type=blob["media_type"])
        if url
        else FileSource(value=blob["digest"], provider=PROVIDER, mime_type=blob["media_type"])
    )
    metadata = {BLOB: dict(blob)}
    match part["type"]:
        case "image":
            return ImagePart(source=source, metadata=metadata)
        case "audio":
            return AudioPart(source=source, metadata=metadata)
    if blob["media_type"].startswith("video/"):
        return VideoPart(source=source, metadata=metadata)
    return DocumentPart(source=source, metadata=metadata)


def read_content(
    content: str | Sequence[ContentPart], path: str = "content", numbers: Sequence[int] | None = None
) -> AnyContent:
    """Read the content of a message that a client sends. Bytes are stored when it is sent to the session.

    `path` and `numbers` name its parts in errors.

    Raises:
        InvalidInput: The bytes are not in base64, or a part names a blob without its description.
        TooLarge: A part has more bytes than a blob may have.
        UnsupportedContent: A part is at an address or at a provider, from where nothing is fetched.
    """
    if isinstance(content, str):
        return content
    texts = [part.text for part in content if isinstance(part, TextPart)]
    if len(texts) == len(content):
        return "\n".join(texts)
    read: list[str | Media | Part] = []
    for number, part in zip(numbers or range(len(content)), content, strict=True):
        try:
            read.append(_read_part(part))
        except (InvalidInput, TooLarge, UnsupportedContent) as error:
            raise type(error)(f"{path}.{number}: {error}") from None
    return read


def _read_part(part: ContentPart) -> str | Media | Part:
    if isinstance(part, TextPart):
        return part.text
    metadata = part.metadata if isinstance(part.metadata, dict) else {}
    source = part.source
    if BLOB in metadata:
        return _MEDIA[part.type].from_blob(_read_blob(metadata[BLOB], source))
    name = metadata.get(FILE_NAME)
    name = name if isinstance(name, str) and name.strip() else None
    match source:
        case DataSource():
            return _MEDIA[part.type].from_bytes(_decode(source.value), _read_type(source.mime_type), name)
        case UrlSource(value=url) if url.startswith("data:"):
            return _read_data_url(part.type, url, name)
        case UrlSource(value=url) if isinstance(part, ImagePart):
            return Image.from_url(url)
        case UrlSource():
            raise UnsupportedContent(f"a part of the type {part.type} has an address: only images may have one")
        case FileSource(provider=provider) if provider == PROVIDER:
            raise InvalidInput(f"a file of the provider {PROVIDER!r} needs the metadata {BLOB!r}: its description")
    raise UnsupportedContent(f"a part of the type {part.type} is a file at a provider: send its bytes")


def _read_blob(description: Any, source: PartSource) -> Blob:
    try:
        blob = _blobs.validate_python(description, strict=True)
    except ValidationError as error:
        raise InvalidInput(f"the metadata {BLOB!r} describes no blob: {error.errors()[0]['msg']}") from None
    if isinstance(source, FileSource) and source.value != blob["digest"]:
        raise InvalidInput(f"the metadata {BLOB!r} describes another blob than the part names")
    return blob


def _read_type(mime_type: str) -> str | None:
    """Read a type without its parameters; None: that of the bytes."""
    return mime_type.partition(";")[0].strip().lower() or None


def _decode(value: str) -> bytes:
    if len(value) // 4 * 3 > MAX_BLOB_BYTES + 2:
        raise TooLarge(f"a part has more than {MAX_BLOB_BYTES} bytes, the most that are stored")
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("the bytes of a part are not in base64") from None


def _read_data_url(kind: str, url: str, name: str | None) -> Media:
    head, comma, data = url.removeprefix("data:").partition(",")
    if not comma:
        raise InvalidInput("the address of a part is no complete data URL")
    if len(data) > 2 * MAX_BLOB_BYTES:
        raise TooLarge(f"a part has more than {MAX_BLOB_BYTES} bytes, the most that are stored")
    is_base64 = head.lower().endswith(";base64")
    return _MEDIA[kind].from_bytes(_decode(data) if is_base64 else unquote_to_bytes(data), _read_type(head), name)
