"""The bytes of the images, recordings and files that model calls send, read from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from temporalio.exceptions import ApplicationError

from clew_activities.archive.blobs import Blobs
from clew_activities.archive.errors import ObjectDamaged, translate_archive_errors
from clew_activities.providers import ModelRequest, Provider
from clew_activities.providers.encoders import get_forms
from clew_activities.providers.errors import MediaRefused
from clew_activities.providers.media import choose_media, describe_replaced
from clew_workflows.contract.errors import UnknownBlob

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
