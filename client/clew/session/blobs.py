"""Blobs of a session: stored by the workflow `PutBlob` in chunks, and read by `GetBlob` in pages.

Where the store signs URLs, `StartUpload` and `FinishUpload` store one that is uploaded to the store itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from clew.content import AnyContent, ContentPart, File, Image, Media, clean_name, guess_text_type
from clew.session.handle import SessionHandle
from clew.session.transport import make_input
from clew_workflows.contract import (
    FINISH_UPLOAD_WORKFLOW,
    GET_BLOB_WORKFLOW,
    PUT_BLOB_WORKFLOW,
    START_UPLOAD_WORKFLOW,
    FinishUploadInput,
    GetBlobInput,
    PutBlobInput,
    StartUploadInput,
)
from clew_workflows.contract.content import MAX_BLOB_BYTES, MAX_PARTS, Blob, Content, Part, get_blob, list_media
from clew_workflows.contract.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    ClewError,
    InvalidInput,
    TooLarge,
    UnsupportedContent,
)
from clew_workflows.contract.names import MAX_CHUNK_BYTES
from clew_workflows.contract.outputs import BlobPage, BlobReceipt, UploadReceipt
from clew_workflows.contract.payloads import MessagePayload, OperationPayload
from clew_workflows.encryption import find_sealer
from clew_workflows.thread.entries import Entry

AT_ONCE = 4
"""Chunks that a session's handle sends at the same time; others wait."""
LABEL_CHARACTERS = 12
"""Characters of a digest or an upload's id in the id of a workflow that brings or reads a chunk."""
PAGES_AHEAD = 3
"""Pages of a blob that are read at the same time."""
MAX_KNOWN = 10_000
"""Most blobs that a handle remembers to have stored."""
UPLOAD_TIMEOUT = 60.0
"""Seconds within which a store must take the next bytes of an upload, and answer it."""

BlobSource = bytes | str | PathLike[str] | AsyncIterable[bytes]
"""The bytes of a blob: themselves, the path of their file, or a stream of pieces."""


def check_parts(content: Any) -> None:
    """Check that a content has no more parts than a session takes, before anything is made of them.

    Raises:
        InvalidInput: It has.
    """
    if isinstance(content, Sequence) and not isinstance(content, str) and len(content) > MAX_PARTS:
        raise InvalidInput(f"content: it has {len(content)} parts, at most {MAX_PARTS} are taken")


class SessionBlobs:
    """Stores and reads the blobs of one session. It remembers those that it has stored."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle
        self._free = asyncio.Semaphore(AT_ONCE)
        self._known: dict[tuple[str, str | None], Blob] = {}
        self._locks: dict[tuple[str, str | None], asyncio.Lock] = {}

    async def put(
        self, source: BlobSource, media_type: str | None = None, name: str | None = None, *, direct: bool = False
    ) -> Blob:
        """Store a blob and return its description. `direct`: it is uploaded to the store itself."""
        name = clean_name(name) if name is not None else None
        if isinstance(source, str | PathLike):
            path = Path(source)
            name = name or clean_name(path.name)
            media_type = media_type or guess_text_type(path.name)
            # A huge file is not read to its end.
            source = await asyncio.to_thread(File.from_path(path).read, MAX_BLOB_BYTES)
        media_type = media_type or guess_text_type(name or "")
        if direct and not isinstance(source, bytes):
            source = await _collect(source)
        if isinstance(source, bytes):
            return await self._put_bytes(source, media_type, name, direct=direct)
        return await self._put_stream(source, media_type, name)

    async def start_upload(self, **fields: Any) -> UploadReceipt:
        """Have a worker sign a URL. The fields are those of `StartUploadInput`."""
        command = make_input(StartUploadInput, {**fields, "session_id": self._handle.session_id})
        # The history has the URL.
        answer = await self._handle.run_service(START_UPLOAD_WORKFLOW, command, keeps_history=False)
        return UploadReceipt.model_validate(answer)

    async def finish_upload(self, upload_id: str) -> Blob:
        """Have a worker verify and store what was uploaded, and return its description."""
        query = {"session_id": self._handle.session_id, "upload_id": upload_id}
        answer = await self._handle.run_service(
            FINISH_UPLOAD_WORKFLOW, make_input(FinishUploadInput, query), keeps_history=False
        )
        return _get_blob(BlobReceipt.model_validate(answer))

    async def read(self, blob: Blob | str) -> AsyncGenerator[bytes, None]:
        """Read a blob in pieces, some ahead of the caller, and verify its digest at the end."""
        digest = blob if isinstance(blob, str) else blob["digest"]
        first, total = await self._read_page(digest, 0)
        if not first:
            raise ArchiveDamaged(f"blob {digest[:12]}: its first page is empty")
        hashed = hashlib.sha256(first)
        yield first
        later: deque[asyncio.Task[tuple[bytes, int]]] = deque()
        try:
            offset = len(first)
            while offset < total or later:
                while offset < total and len(later) < PAGES_AHEAD:
                    later.append(asyncio.create_task(self._read_page(digest, offset)))
                    offset += len(first)
                data, _ = await later.popleft()
                hashed.update(data)
                yield data
        finally:
            for task in later:
                task.cancel()
            await asyncio.gather(*later, return_exceptions=True)
        if hashed.hexdigest() != digest:
            raise ArchiveDamaged(f"blob {digest[:12]}: the bytes that were read do not have its digest")

    async def _read_page(self, digest: str, offset: int) -> tuple[bytes, int]:
        """Read a page of a blob. Returns its bytes, and how many the blob has in all."""
        query = {"session_id": self._handle.session_id, "digest": digest, "offset": offset}
        label = f"{digest[:LABEL_CHARACTERS]}-{offset}"
        answer = await self._handle.run_service(
            GET_BLOB_WORKFLOW, make_input(GetBlobInput, query), keeps_history=False, label=label
        )
        page = BlobPage.model_validate(answer)
        return b64decode(page.data), page.blob["bytes"]

    async def make_content(self, content: AnyContent) -> Content:
        """Make the content of a message, after storing what it has of bytes."""
        if isinstance(content, str):
            return content
        parts: Sequence[ContentPart] = [content] if isinstance(content, Media | Mapping) else content
        check_parts(parts)
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
        detail: Any = {"detail": part.detail} if isinstance(part, Image) and part.detail else {}
        if isinstance(part, Image) and part.url is not None:
            return cast("Part", {"type": "image", "url": part.url, **detail})
        blob = part.blob or await self._put_bytes(
            await asyncio.to_thread(part.read, MAX_BLOB_BYTES), part.media_type, part.name
        )
        made: Any = {"type": part.kind, "blob": blob, **detail}
        return cast("Part", made)

    async def _put_bytes(
        self, data: bytes, media_type: str | None, name: str | None, *, direct: bool = False
    ) -> Blob:
        """Store bytes, unless this handle has stored them before."""
        if len(data) > MAX_BLOB_BYTES:
            raise TooLarge(f"the blob has {len(data)} bytes, at most {MAX_BLOB_BYTES} are stored")
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        key = (digest, media_type)
        if self._handle.lacks_blobs:
            self._known.clear()
            self._handle.lacks_blobs = False
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._known.get(key)) is None:
                upload = self._upload_directly if direct else self._upload
                known = await upload(data, digest, media_type)
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

    async def _upload_directly(self, data: bytes, digest: str, media_type: str | None) -> Blob:
        """Upload bytes to the store, encrypted if this client encrypts."""
        if not data:
            raise UnsupportedContent("the blob is empty")
        sealer = find_sealer(self._handle.client.data_converter)
        declared = {"bytes": len(data), "media_type": media_type, "digest": digest, "encrypted": sealer.is_on}
        async with self._free:
            upload = await self.start_upload(**declared)
            if upload.object_name is not None:
                data = await asyncio.to_thread(sealer.seal, data, upload.object_name)
            await asyncio.to_thread(_send_bytes, upload, data)
            return await self.finish_upload(upload.upload_id)

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
                PUT_BLOB_WORKFLOW,
                make_input(PutBlobInput, fields),
                keeps_history=not fields["last"],
                label=_make_label(fields),
            )
        return BlobReceipt.model_validate(answer)


def _make_label(chunk: Mapping[str, Any]) -> str:
    """Name a chunk in the id of its workflow: by its upload or the blob's digest, and its number."""
    upload: str = chunk.get("upload_id") or chunk.get("digest") or ""
    return f"{upload[:LABEL_CHARACTERS]}-{chunk.get('part', 0)}"


def _get_blob(receipt: BlobReceipt) -> Blob:
    if receipt.blob is None:
        raise ArchiveDamaged("the worker has stored the blob, and has not described it")
    return receipt.blob


async def _collect(stream: AsyncIterable[bytes]) -> bytes:
    """Read a stream into memory: a request to a signed URL names its length before its bytes."""
    collected = bytearray()
    async for piece in stream:
        collected += piece
        if len(collected) > MAX_BLOB_BYTES:
            raise TooLarge(f"the blob has more than {MAX_BLOB_BYTES} bytes")
    return bytes(collected)


def _send_bytes(upload: UploadReceipt, data: bytes) -> None:
    """Send the bytes of an upload to its URL.

    Raises:
        ArchiveUnavailable: The store has refused them, or does not answer. The message does not repeat the URL.
    """
    address = urlsplit(upload.url)
    if address.scheme not in ("http", "https"):
        raise ArchiveUnavailable("the worker has signed an address that is no URL of a store")
    # Of a file each block has the timeout, of bytes all of them together.
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(data)), **upload.headers}
    request = urllib.request.Request(upload.url, io.BytesIO(data), headers, method=upload.method)
    try:
        # No redirect of a PUT is followed.
        with urllib.request.urlopen(request, timeout=UPLOAD_TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise ArchiveUnavailable(f"the store at {address.hostname} refused the upload: HTTP {error.code}") from None
    except (urllib.error.URLError, OSError) as error:
        cause = getattr(error, "reason", error)
        raise ArchiveUnavailable(f"the store at {address.hostname} took no upload: {cause}") from None


# The blobs that a thread names.


class NamedBlob(TypedDict):
    """A blob that the thread names.

    Attributes:
        blob: Its description.
        type: The kind of the part.
        seq: The first entry that names it.
    """

    blob: Blob
    type: str
    seq: int


async def read_named(entries: AsyncIterable[Entry]) -> AsyncGenerator[NamedBlob, None]:
    """Read the blobs that entries name: each digest once, in the order of the thread."""
    known: set[str] = set()
    async for entry in entries:
        for named in list_named(entry):
            if named["blob"]["digest"] not in known:
                known.add(named["blob"]["digest"])
                yield named


def list_named(entry: Entry) -> Iterator[NamedBlob]:
    """List the blobs that an entry names: in its message, or in the messages of its snapshot."""
    contents: list[Content] = []
    # A later release may have written what this one cannot read.
    with suppress(ValueError):
        match entry.body:
            case MessagePayload(content=content):
                contents = [content]
            case OperationPayload(snapshot=snapshot) if snapshot:
                contents = [message["content"] for message in snapshot.messages]
    # Arguments of tools are a model's own: what looks like a part there names nothing.
    for part in (part for content in contents for part in list_media(content)):
        if blob := get_blob(part):
            yield NamedBlob(blob=blob, type=part["type"], seq=entry.seq)
