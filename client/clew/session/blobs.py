"""Blobs of a session: stored by the workflow `PutBlob` in chunks, and read by `GetBlob` in pages."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from clew.content import AnyContent, ContentPart, Image, Media, clean_name, guess_text_type
from clew.session.handle import SessionHandle
from clew.session.transport import make_input
from clew_workflows.contract import GET_BLOB_WORKFLOW, PUT_BLOB_WORKFLOW, GetBlobInput, PutBlobInput
from clew_workflows.contract.content import MAX_BLOB_BYTES, Blob, Content, Part
from clew_workflows.contract.errors import ArchiveDamaged, ClewError, InvalidInput, TooLarge
from clew_workflows.contract.names import MAX_CHUNK_BYTES
from clew_workflows.contract.outputs import BlobPage, BlobReceipt

AT_ONCE = 4
"""Chunks that a session's handle sends at the same time; others wait."""
MAX_KNOWN = 10_000
"""Most blobs that a handle remembers to have stored."""

BlobSource = bytes | str | PathLike[str] | AsyncIterable[bytes]
"""The bytes of a blob: themselves, the path of their file, or a stream of pieces."""


class SessionBlobs:
    """Stores and reads the blobs of one session. It remembers those that it has stored."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle
        self._free = asyncio.Semaphore(AT_ONCE)
        self._known: dict[tuple[str, str | None], Blob] = {}
        self._locks: dict[tuple[str, str | None], asyncio.Lock] = {}

    async def put(self, source: BlobSource, media_type: str | None = None, name: str | None = None) -> Blob:
        """Store a blob and return its description."""
        name = clean_name(name) if name is not None else None
        if isinstance(source, str | PathLike):
            path = Path(source)
            name = name or clean_name(path.name)
            media_type = media_type or guess_text_type(path.name)
            source = await asyncio.to_thread(path.read_bytes)
        media_type = media_type or guess_text_type(name or "")
        if isinstance(source, bytes):
            return await self._put_bytes(source, media_type, name)
        return await self._put_stream(source, media_type, name)

    async def read(self, blob: Blob | str) -> AsyncGenerator[bytes, None]:
        """Read a blob in pieces, and verify its digest at the end."""
        digest = blob if isinstance(blob, str) else blob["digest"]
        hashed, offset = hashlib.sha256(), 0
        while True:
            query = {"session_id": self._handle.session_id, "digest": digest, "offset": offset}
            answer = await self._handle.run_service(
                GET_BLOB_WORKFLOW, make_input(GetBlobInput, query), keeps_history=False
            )
            page = BlobPage.model_validate(answer)
            data = b64decode(page.data)
            hashed.update(data)
            yield data
            if page.next_offset is None:
                break
            if page.next_offset <= offset:
                raise ArchiveDamaged(f"blob {digest[:12]}: its pages do not follow one another")
            offset = page.next_offset
        if hashed.hexdigest() != digest:
            raise ArchiveDamaged(f"blob {digest[:12]}: the bytes that were read do not have its digest")

    async def make_content(self, content: AnyContent) -> Content:
        """Make the content of a message, after storing what it has of bytes."""
        if isinstance(content, str):
            return content
        parts: Sequence[ContentPart] = [content] if isinstance(content, Media | Mapping) else content
        return list(await asyncio.gather(*map(self._make_part, parts)))

    async def _make_part(self, part: ContentPart) -> Part:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, Mapping):
            return cast("Part", dict(part))
        if not isinstance(part, Media):
            raise InvalidInput(
                f"content: a part is a text, an Image, an Audio, a File or a part as JSON, not {type(part).__name__}"
            )
        if isinstance(part, Image) and part.url is not None:
            return {"type": "image", "url": part.url}
        blob = part.blob or await self._put_bytes(await asyncio.to_thread(part.read), part.media_type, part.name)
        made: Any = {"type": part.kind, "blob": blob}
        return cast("Part", made)

    async def _put_bytes(self, data: bytes, media_type: str | None, name: str | None) -> Blob:
        """Store bytes, unless this handle has stored them before."""
        if len(data) > MAX_BLOB_BYTES:
            raise TooLarge(f"the blob has {len(data)} bytes, at most {MAX_BLOB_BYTES} are stored")
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        key = (digest, media_type)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._known.get(key)) is None:
                known = await self._upload(data, digest, media_type)
                if len(self._known) >= MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        self._locks.pop(key, None)
        return cast("Blob", {**known, "name": name} if name else dict(known))

    async def _upload(self, data: bytes, digest: str, media_type: str | None) -> Blob:
        chunks = [data[start : start + MAX_CHUNK_BYTES] for start in range(0, len(data), MAX_CHUNK_BYTES)] or [b""]
        # The same bytes have the same upload: one that was interrupted leaves nothing that the next does not replace.
        upload_id = digest if len(chunks) > 1 else None
        try:
            async with asyncio.TaskGroup() as tasks:
                for part, chunk in enumerate(chunks[:-1]):
                    tasks.create_task(self._send(chunk, upload_id=upload_id, part=part, last=False))
        except* ClewError as failed:
            # Callers know the errors of the contract, and no groups.
            raise failed.exceptions[0] from None
        last = await self._send(
            chunks[-1], upload_id=upload_id, part=len(chunks) - 1, last=True, media_type=media_type, digest=digest
        )
        return _get_blob(last)

    async def _put_stream(self, stream: AsyncIterable[bytes], media_type: str | None, name: str | None) -> Blob:
        """Store a stream. One chunk of it is in memory."""
        upload_id, part, size, waiting, hashed = secrets.token_hex(16), 0, 0, bytearray(), hashlib.sha256()
        async for piece in stream:
            hashed.update(piece)
            size += len(piece)
            if size > MAX_BLOB_BYTES:
                raise TooLarge(f"the blob has more than {MAX_BLOB_BYTES} bytes")
            waiting += piece
            # The last chunk is not known before the end.
            while len(waiting) > MAX_CHUNK_BYTES:
                await self._send(bytes(waiting[:MAX_CHUNK_BYTES]), upload_id=upload_id, part=part, last=False)
                del waiting[:MAX_CHUNK_BYTES]
                part += 1
        last = await self._send(
            bytes(waiting),
            upload_id=upload_id if part else None,
            part=part,
            last=True,
            media_type=media_type,
            digest=hashed.hexdigest(),
            name=name,
        )
        return _get_blob(last)

    async def _send(self, data: bytes, **fields: Any) -> BlobReceipt:
        fields = {**fields, "session_id": self._handle.session_id, "data": b64encode(data).decode()}
        async with self._free:
            # The worker deletes the histories of the other chunks with the last one.
            answer = await self._handle.run_service(
                PUT_BLOB_WORKFLOW, make_input(PutBlobInput, fields), keeps_history=not fields["last"]
            )
        return BlobReceipt.model_validate(answer)


def _get_blob(receipt: BlobReceipt) -> Blob:
    if receipt.blob is None:
        raise ArchiveDamaged("the worker has stored the blob, and has not described it")
    return receipt.blob
