"""The parts of a user's message in Chat Completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew_activities.providers.media import (
    WAV,
    encode_base64,
    get_media_type,
    get_url,
    make_data_url,
    name_file,
)
from clew_workflows.contract.content import Part, find_sort


def encode_part(part: Part, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    """Encode a part that the dialect takes."""
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    match find_sort(part):
        case "image":
            return {"type": "image_url", "image_url": {"url": get_url(part) or make_data_url(part, blobs)}}
        case "audio":
            kind = "wav" if get_media_type(part) == WAV else "mp3"
            return {"type": "input_audio", "input_audio": {"data": encode_base64(part, blobs), "format": kind}}
    return {"type": "file", "file": {"filename": name_file(part, ".pdf"), "file_data": make_data_url(part, blobs)}}
