"""What a model has drawn or said: its images and recordings are stored, and are parts of its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clew_activities.archive.blobs import Blobs
from clew_activities.providers.reply import DrawnMedia
from clew_activities.received_media import NewMedia, Unusable, make_part
from clew_workflows.contract.content import Part, read_parts
from clew_workflows.contract.errors import Refusal
from clew_workflows.protocol import ModelReply


async def keep_media(
    reply: ModelReply, media: Sequence[DrawnMedia], blobs: Blobs | None, session_id: str, *, has_places: bool
) -> ModelReply:
    """Store the media of a reply, and make its content parts: texts and media, in their order.

    What cannot be a part is a text that says why. Unless the media `has_places` in the text, it follows all of it.

    Raises:
        ArchiveError: The archive cannot be read or written.
    """
    family = await blobs.find_family(session_id) if blobs else None
    text, parts, end = reply.text, list[Part](), 0
    starts = [drawn.start for drawn in media]
    if not has_places:
        starts = [len(text)] * len(media)
    for start, drawn in zip(starts, media, strict=True):
        _append_text(parts, text[end:start])
        end = max(start, end)
        parts.append(await _keep(drawn, blobs, family))
    _append_text(parts, text[end:])
    has_media = any(part["type"] != "text" for part in parts)
    content: Any = parts if has_media else "\n".join(part["text"] for part in parts if part["type"] == "text")
    return reply.model_copy(update={"content": content})


def _append_text(parts: list[Part], text: str) -> None:
    if text.strip():
        parts.append({"type": "text", "text": text})


async def _keep(drawn: DrawnMedia, blobs: Blobs | None, family: str | None) -> Part:
    if drawn.url:
        parts = read_parts([{"type": "image", "url": drawn.url}])
        return parts[0] if parts else _say(Unusable(drawn.kind, "its address is not valid"))
    read = await asyncio.to_thread(drawn.read)
    if not isinstance(read, NewMedia):
        return _say(read)
    if blobs is None or family is None:
        return _say(Unusable(drawn.kind, "the worker has no archive that could keep it"))
    try:
        return make_part(drawn.kind, await blobs.store(family, read.data, media_type=read.media_type, name=read.name))
    except Refusal as refusal:
        return _say(Unusable(drawn.kind, refusal.message))


def _say(unusable: Unusable) -> Part:
    return {"type": "text", "text": unusable.text}
