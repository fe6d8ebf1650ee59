"""The parts of messages, as sessions take them: texts, images, recordings and files. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from clew.content import Audio, File, Image, Media
from clew.serve.openai import bodies
from clew.serve.openai.refusals import InvalidValue, UnsupportedValue
from clew_workflows.contract.content import ImageDetail
from clew_workflows.contract.errors import TooLarge
from clew_workflows.contract.limits import MAX_BLOB_BYTES

Parts = list[str | Media | Mapping[str, Any]]
"""The parts of a message, as `Session.message` takes them."""
_DIGEST = re.compile(r"(?:file-)?([0-9a-f]{64})")
_PIECE_CHARACTERS = 1_048_576
"""Characters of base64 that are decoded at once: a multiple of four."""


def read_content(content: str | Sequence[Any] | None, param: str, *, is_text: bool = False) -> Parts:
    """Read the content of a message; `param` names it. With `is_text` it has nothing but texts.

    Raises:
        InvalidValue: A part is not valid.
        TooLarge: A part has more bytes than are stored.
        UnsupportedValue: A part is a file elsewhere, or no text.
    """
    if isinstance(content, str):
        return [content]
    parts = [_read_part(part, f"{param}[{number}]") for number, part in enumerate(content or ())]
    if is_text:
        for number, part in enumerate(parts):
            if not isinstance(part, str):
                path = f"{param}[{number}]"
                raise UnsupportedValue(f"'{path}' is no text: messages of the system have texts alone", param=path)
    return parts


def _read_part(part: Any, param: str) -> str | Media | Mapping[str, Any]:
    match part:
        case bodies.InputText() | bodies.OutputText() | bodies.ChatText():
            return part.text
        case bodies.Refusal() | bodies.ChatRefusal():
            return part.refusal
        case bodies.InputImage():
            return _read_image(part.image_url, part.file_id, part.detail, param)
        case bodies.ChatImage():
            return _read_image(part.image_url.url, None, part.image_url.detail, param)
        case bodies.InputFile():
            return _read_file(part.file_data, part.file_id, part.filename, part.file_url, param)
        case bodies.ChatFile():
            return _read_file(part.file.file_data, part.file.file_id, part.file.filename, None, param)
        case bodies.InputAudio() | bodies.ChatAudio():
            audio = part.input_audio
            return Audio.from_bytes(
                _decode(audio.data, param), {"mp3": "audio/mpeg", "wav": "audio/wav"}[audio.format]
            )
    raise AssertionError(part)


def _read_image(
    url: str | None, file_id: str | None, detail: ImageDetail | None, param: str
) -> Media | Mapping[str, Any]:
    # `auto` is what a provider does without it.
    detail = None if detail == "auto" else detail
    if file_id and not url:
        return {**_name_blob("image", file_id, param), **({"detail": detail} if detail else {})}
    if not url or file_id:
        raise InvalidValue(f"'{param}' has either an image_url or a file_id", param=param)
    image = read_image_url(url, param)
    image.detail = detail
    return image


def read_image_url(url: str, param: str) -> Image:
    """Read an image from a data URL, or name the address at which a provider finds it.

    Raises:
        InvalidValue: It is no complete data URL.
        TooLarge: The image has more bytes than are stored.
    """
    if not url.startswith("data:"):
        return Image.from_url(url)
    media_type, data = _read_data_url(url, param)
    return Image.from_bytes(data, media_type)


def _read_file(
    data: str | None, file_id: str | None, name: str | None, url: str | None, param: str
) -> Media | Mapping[str, Any]:
    if url:
        raise UnsupportedValue("files at addresses are not fetched: send file_data", param=f"{param}.file_url")
    if file_id and not data:
        return _name_blob("file", file_id, param)
    if not data or file_id:
        raise InvalidValue(f"'{param}' has either file_data or a file_id", param=param)
    if data.startswith("data:"):
        media_type, read = _read_data_url(data, param)
        return File.from_bytes(read, media_type, name)
    return File.from_bytes(_decode(data, param), None, name)


def _name_blob(kind: str, file_id: str, param: str) -> Mapping[str, Any]:
    """Name a blob of the session by its digest. What else a part says of it is looked up before it is sent."""
    named = _DIGEST.fullmatch(file_id)
    if named is None:
        raise UnsupportedValue(
            "a file_id is the digest of a blob of the session: upload it by PUT /v1/sessions/{id}/blobs, or send the "
            "bytes",
            param=f"{param}.file_id",
        )
    return {"type": kind, "digest": named[1]}


def _read_data_url(url: str, param: str) -> tuple[str | None, bytes]:
    head, comma, data = url.removeprefix("data:").partition(",")
    if not comma:
        raise InvalidValue(f"'{param}' has no complete data URL", param=param)
    media_type = head.partition(";")[0].strip().lower() or None
    if head.lower().endswith(";base64"):
        return media_type, _decode(data, param)
    return media_type, unquote_to_bytes(data)


def _decode(data: str, param: str) -> bytes:
    if len(data) // 4 * 3 > MAX_BLOB_BYTES + 2:
        raise TooLarge(f"'{param}' has more than {MAX_BLOB_BYTES} bytes, the most that are stored")
    # No regular expression, and piece by piece: either would stop all other requests while it reads 40 MB at once.
    # A text without white space is not copied here.
    data = "".join(data.split())
    pieces = (data[start : start + _PIECE_CHARACTERS] for start in range(0, len(data), _PIECE_CHARACTERS))
    has_end_within = data.find("=", 0, -2) >= 0
    with suppress(ValueError):
        if not has_end_within and (read := b"".join(b64decode(piece, validate=True) for piece in pieces)):
            return read
    raise InvalidValue(f"'{param}' has bytes that are not in base64", param=param)
