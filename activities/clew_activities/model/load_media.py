"""The images, recordings and files of model calls: read from the archive to be sent, and stored in it if drawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from temporalio.exceptions import ApplicationError

from clew_activities.archive.archive_errors import ObjectDamaged, translate_archive_errors
from clew_activities.archive.blob_store import Blobs
from clew_activities.providers import ModelRequest, Provider
from clew_activities.providers.encoders import get_forms
from clew_activities.providers.provider_errors import MediaRefused
from clew_activities.providers.reply import DrawnMedia
from clew_activities.providers.request_media import choose_media, describe_replaced
from clew_activities.received_media import NewMedia, Unusable, make_part
from clew_workflows.contract.content import Part, read_parts
from clew_workflows.contract.errors import Refusal, UnknownBlob
from clew_workflows.protocol import ModelReply

MAX_SENDING_BYTES = 256 * 1024 * 1024
"""Most bytes, as base64, of the media of the calls that a worker makes at the same time; others wait."""


class MediaLoader:
    """Reads the bytes of the parts that requests have. All calls together hold a bounded number of bytes."""

    def __init__(self, blobs: Blobs, *, max_sending_bytes: int = MAX_SENDING_BYTES) -> None:
        self._blobs = blobs
        self._most = max_sending_bytes
        self._used = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def load(
        self, provider: Provider, request: ModelRequest, session_id: str, *, refuses: bool = False
    ) -> AsyncIterator[ModelRequest]:
        """Read the bytes that a request needs, and keep them until the end of the block. A text needs none.

        Args:
            provider: The provider, which says what it takes.
            request: The request, without bytes.
            session_id: The session, whose family has the blobs.
            refuses: Whether the policy allows no marker for a part.

        Raises:
            ApplicationError: A blob is missing or damaged (`unknown_blob`, final), or the store fails.
            ContextLengthExceeded: The parts have more bytes than the provider takes.
            MediaRefused: A marker would stand for a part, and the policy allows none.
        """
        forms = get_forms(provider, request.model)
        chosen = choose_media(request, forms)
        if refuses and chosen.replaced:
            raise MediaRefused(describe_replaced(chosen.replaced))
        if not chosen.blobs:
            yield request
            return
        chosen.ensure_size(forms)
        size = min(chosen.size, self._most)
        async with self._changed:
            await self._changed.wait_for(lambda: self._used + size <= self._most)
            self._used += size
        try:
            yield replace(request, blobs=await self._read(session_id, list(chosen.blobs)))
        finally:
            self._used -= size
            async with self._changed:
                self._changed.notify_all()

    async def _read(self, session_id: str, digests: list[str]) -> dict[str, bytes]:
        async with translate_archive_errors():
            family = await self._blobs.find_family(session_id)
            read = {}
            for digest in digests:
                try:
                    read[digest] = await self._blobs.read(family, digest)
                except (ObjectDamaged, UnknownBlob) as error:
                    message = f"media of the context cannot be read: {error}. Store the bytes again"
                    raise ApplicationError(message, type=UnknownBlob.type, non_retryable=True) from error
            return read


# The images and recordings of a reply.


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
