"""What servers refuse of images, recordings and files: they decode each one, and look at its first bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.providers.strict_server import Exchange, Refusal, Rule

_SIGNATURES: Mapping[str, bytes] = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF-",
    "audio/wav": b"RIFF",
    "audio/mp3": b"ID3",
}


@dataclass(frozen=True)
class Received:
    """Something of a request that is no text.

    Attributes:
        place: Where it stands.
        role: The role of its message.
        media_type: The type that it is declared to have.
        data: It, as base64, or its address.
        in_result: Whether it stands in a tool's result.
    """

    place: str
    role: str
    media_type: str
    data: str
    in_result: bool

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.decode() or b"").hexdigest()

    def decode(self) -> bytes | None:
        """Decode it; None: it is not base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except binascii.Error:
            return None


def list_received(body: Mapping[str, Any]) -> list[Received]:
    """List what a request in any format has beside texts, in order."""
    messages = body.get("messages") or body.get("input") or body.get("contents") or ()
    return [
        found
        for index, message in enumerate(messages)
        for found in _find(
            message,
            f"messages.{index}",
            message.get("role", ""),
            in_result=message.get("role") == "tool" or message.get("type") == "function_call_output",
        )
    ]


def _find(value: Any, place: str, role: str, *, in_result: bool) -> Iterator[Received]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find(item, f"{place}.{index}", role, in_result=in_result)
    elif isinstance(value, dict):
        in_result = (
            in_result or value.get("type") == "tool_result" or bool({"toolResult", "functionResponse"} & {*value})
        )
        if (read := _read(value)) is not None:
            yield Received(place, role, *read, in_result)
            return
        for name, item in value.items():
            yield from _find(item, f"{place}.{name}", role, in_result=in_result)


def _read(part: Mapping[str, Any]) -> tuple[str, str] | None:
    """Read a part of any format: its type and its data; None: it is none."""
    match part:
        case {"source": {"type": "base64", "media_type": media_type, "data": data}}:
            return media_type, data
        case {"source": {"bytes": data}, "format": kind}:
            return f"{'application' if kind == 'pdf' else 'image'}/{kind}", data
        case {"inlineData": {"mimeType": media_type, "data": data}}:
            return media_type, data
        case {"type": "image_url", "image_url": {"url": url}}:
            return _read_url(url)
        case {"type": "input_image", "image_url": url}:
            return _read_url(url)
        case {"type": "input_file", "file_data": url}:
            return _read_url(url)
        case {"type": "file", "file": {"file_data": url}}:
            return _read_url(url)
        case {"type": "input_audio", "input_audio": {"data": data, "format": kind}}:
            return f"audio/{kind}", data
    return None


def _read_url(url: str) -> tuple[str, str]:
    head, _, data = url.partition(";base64,")
    return head.removeprefix("data:"), data


def take_media(types: Collection[str], *, in_results: bool) -> Rule:
    """Make the rule of what is taken: its types, and whether a tool's result may have it."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for one in list_received(exchange.body):
            data = one.decode()
            if one.media_type not in types:
                yield Refusal(f"{one.place}: the media type {one.media_type!r} is not supported")
            elif not data or not data.startswith(_SIGNATURES[one.media_type]):
                yield Refusal(f"{one.place}: Could not process image: the data is no {one.media_type}")
            elif one.role in ("assistant", "model", "system"):
                yield Refusal(f"{one.place}: a message of the role {one.role!r} must be a text")
            elif one.in_result and not in_results:
                yield Refusal(f"{one.place}: a tool's result must be a text")

    return rule
