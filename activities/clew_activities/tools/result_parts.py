"""The parts of results: texts, and the images, recordings and files that tools return, stored as blobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from temporalio import activity

from clew.content import Image, Media, make_media
from clew_activities.archive import ArchiveError, ObjectDamaged, ObjectMissing
from clew_activities.archive.blob_store import Blobs
from clew_activities.archive.thread_source import Threads
from clew_activities.received_media import NewMedia, Unusable, make_part
from clew_workflows.contract import EntriesQuery
from clew_workflows.contract.content import ImagePart, Part, iterate_blobs, list_media, read_parts
from clew_workflows.contract.errors import ArchiveDamaged, ArchiveUnavailable, Refusal, TooLarge
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_MESSAGE_BLOB_BYTES, MAX_PARTS
from clew_workflows.contract.payloads import UserMessage
from clew_workflows.protocol import RunTool
from clew_workflows.session.named_blobs import check_kinds
from clew_workflows.thread.source import make_filter

T = TypeVar("T")

_image: TypeAdapter[ImagePart] = TypeAdapter(ImagePart)

Piece: TypeAlias = str | NewMedia | Unusable | Part
"""A piece of a result: a text, media to store, media that cannot be used, or a part whose blob is stored."""


def collect_pieces(value: Any, max_bytes: int, make_text: Callable[[Any], str]) -> list[Piece] | None:
    """Collect the pieces of a value that a function has returned; None: it has no media.

    Media is an image, a recording or a file, or a list that has some, with texts and other values between. JSON parts
    that name stored blobs are media, too. It reads files.
    """
    if isinstance(value, Media):
        return [_read_media(value, max_bytes)]
    if (
        isinstance(value, Mapping)
        and value.get("type") in ("image", "audio", "file")
        and (one := read_parts([value]))
    ):
        return list(one)
    if not isinstance(value, list | tuple):
        return None
    read = [(item, _read_part(item)) for item in value]
    if not any(isinstance(item, Media) or (part and part["type"] != "text") for item, part in read):
        return None
    pieces: list[Piece] = []
    left = max_bytes
    for item, part in read:
        if isinstance(item, Media):
            piece = _read_media(item, left)
            left -= len(piece.data) if isinstance(piece, NewMedia) else 0
            pieces.append(piece)
        elif part is not None:
            pieces.append(part["text"] if part["type"] == "text" else part)
        else:
            pieces.append(make_text(item))
    return pieces


def _read_part(item: Any) -> Part | None:
    if not isinstance(item, dict):
        return None
    if item.keys() == {"type", "text"} and item["type"] == "text" and isinstance(item["text"], str):
        return {"type": "text", "text": item["text"]}
    parts = read_parts([item])
    return parts[0] if parts else None


def _read_media(media: Media, max_bytes: int) -> Piece:
    try:
        if isinstance(media, Image) and media.url is not None:
            return _image.validate_python({"type": "image", "url": media.url})
        if media.blob is not None:
            part: Any = {"type": media.kind, "blob": media.blob}
            parts = read_parts([part])
            return parts[0] if parts else Unusable(media.kind, "its blob is not described as Clew does")
        return NewMedia(media.kind, media.read(max(max_bytes, 0)), media.media_type, media.name)
    except ValidationError:
        return Unusable(media.kind, "its address does not begin with https://")
    except Exception as error:  # a path that cannot be read, a class of the author's own
        return Unusable(media.kind, f"{type(error).__name__}: {error}")


class ResultParts:
    """Makes parts of pieces: it inspects and stores their bytes."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def make_parts(self, pieces: Sequence[Piece], call: RunTool, *, until: float) -> tuple[list[Part], bool]:
        """Make the parts of a result. Media that cannot be stored becomes a text that says why.

        Args:
            pieces: The pieces, in order.
            call: The call.
            until: When the storing ends, by the event loop's clock.

        Returns:
            The parts, and whether all that there is of the result are reasons why parts are missing.
        """
        left = MAX_MESSAGE_BLOB_BYTES if call.max_media_bytes is None else call.max_media_bytes
        parts: list[Part] = []
        failures = 0
        for number, piece in enumerate(pieces):
            if len(parts) == MAX_PARTS - 1 and number < len(pieces) - 1:
                parts.append({"type": "text", "text": f"[{len(pieces) - number} more parts are left out]"})
                break
            kept = await self._make_part(piece, call, left, until)
            failures += isinstance(kept, Unusable)
            made: Part = {"type": "text", "text": kept.text} if isinstance(kept, Unusable) else kept
            left -= sum(blob["bytes"] for blob in iterate_blobs([[made]]))
            _append(parts, made)
        return parts, failures == len(pieces)

    async def _make_part(self, piece: Piece, call: RunTool, left: int, until: float) -> Part | Unusable:
        if isinstance(piece, str):
            return {"type": "text", "text": piece}
        if isinstance(piece, Unusable):
            return piece
        kind = piece.kind if isinstance(piece, NewMedia) else piece["type"]
        limit = MAX_BLOB_BYTES if call.max_blob_bytes is None else call.max_blob_bytes
        try:
            if call.family is None:
                raise ArchiveUnavailable("the session has no archive that could keep it")
            async with asyncio.timeout_at(until):
                if isinstance(piece, NewMedia):
                    _check_size(len(piece.data), limit, left)
                    return await self._store(piece, call.family)
                _check_size(sum(blob["bytes"] for blob in iterate_blobs([[piece]])), limit, left)
                check_kinds([[piece]])
                await self._blobs.check(call.family, iterate_blobs([[piece]]))
                return piece
        except (Refusal, ArchiveError, ValidationError) as error:
            return Unusable(kind, str(error))
        except TimeoutError:
            return Unusable(kind, "the archive did not answer in time")

    async def _store(self, piece: NewMedia, family: str) -> Part:
        blob = await self._blobs.store(family, piece.data, media_type=piece.media_type, name=piece.name)
        return make_part(piece.kind, blob)


def _append(parts: list[Part], part: Part) -> None:
    """Append a part; texts that follow one another are one."""
    if part["type"] == "text" and parts and (last := parts[-1])["type"] == "text":
        parts[-1] = {"type": "text", "text": f"{last['text']}\n{part['text']}"}
    elif part["type"] != "text" or part["text"]:
        parts.append(part)


def _check_size(size: int, limit: int, left: int) -> None:
    if size > limit:
        raise TooLarge(f"it has {size} bytes, at most {limit} are kept (max_blob_bytes)")
    if size > left:
        raise TooLarge(f"it has {size} bytes, and {max(left, 0)} are left for the images and files of this result")


class CallReader:
    """Reads the blobs of a call's session, for a function in a thread or on an event loop of its own."""

    def __init__(self, blobs: Blobs, threads: Threads | None, family: str | None, request_id: str) -> None:
        """Take the event loop and the context of the activity that runs."""
        self._blobs = blobs
        self._threads = threads
        self._family = family
        self._request_id = request_id
        self._session_id = activity.info().workflow_id or ""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    async def read(self, digest: str) -> bytes:
        """Read a blob, from any event loop."""
        return await self._await(self._read(digest))

    def read_sync(self, digest: str) -> bytes:
        """Read a blob, and block the thread meanwhile."""
        return self._block(self._read(digest))

    async def list_media(self) -> list[Media]:
        """List the media of the request's messages, from any event loop."""
        return await self._await(self._list_media())

    def list_media_sync(self) -> list[Media]:
        """List them, and block the thread meanwhile."""
        return self._block(self._list_media())

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._context.copy().run(asyncio.run_coroutine_threadsafe, work, self._loop)
        return await asyncio.wrap_future(future)

    def _block(self, work: Coroutine[Any, Any, T]) -> T:
        return self._context.copy().run(asyncio.run_coroutine_threadsafe, work, self._loop).result()

    async def _read(self, digest: str) -> bytes:
        try:
            if self._family is None:
                self._family = await self._blobs.find_family(self._session_id)
            return await self._blobs.read(self._family, digest)
        except (ObjectDamaged, ObjectMissing) as error:
            raise ArchiveDamaged(str(error)) from None
        except ArchiveError as error:
            raise ArchiveUnavailable(str(error)) from None

    async def _list_media(self) -> list[Media]:
        if self._threads is None:
            return []
        query = EntriesQuery(kind="ai_message", request_id=self._request_id)
        matches, found = make_filter(query), list[list[Part]]()
        try:
            async for entry in self._threads.read_backward(self._threads.find_own(), query):
                if matches(entry) and isinstance(message := entry.body, UserMessage):
                    found.append(list_media(message.content))
        except ArchiveError as error:
            raise ArchiveUnavailable(str(error)) from None
        return [media for part in _flatten(reversed(found)) if (media := make_media(part))]


def _flatten(lists: Iterable[list[Part]]) -> Iterable[Part]:
    return (part for parts in lists for part in parts)
