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
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from os import PathLike
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import BaseModel
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
from clew_workflows.contract.content import Blob, Content, Part, get_blob, list_media
from clew_workflows.contract.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    ClewError,
    InvalidInput,
    TooLarge,
    UnsupportedContent,
)
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_CHUNK_BYTES, MAX_PARTS
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
Upload = Callable[[bytes, str, str | None], Awaitable[Blob]]
"""Stores bytes, which have a digest and a media type, and returns the description of the blob."""


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
        media_type = media_type or guess_text_type(name or "")
        if isinstance(source, str | PathLike):
            media = File.from_path(source, media_type=media_type, name=name)
        elif isinstance(source, bytes):
            media = File.from_bytes(source, media_type, name)
        elif direct:
            # A request to a signed URL names its length before its bytes.
            media = File.from_bytes(b"".join([piece async for piece in _limit(source)]), media_type, name)
        else:
            return await self._put_stream(source, media_type, name)
        return await self._put_media(media, self._upload_directly if direct else self._upload)

    async def make_content(self, content: AnyContent) -> Content:
        """Make the content of a message, after storing what it has of bytes."""
        if isinstance(content, str):
            return content
        parts: Sequence[ContentPart] = [content] if isinstance(content, Media | Mapping) else content
        check_parts(parts)
        return list(await asyncio.gather(*map(self._make_part, parts)))

    async def _make_part(self, part: ContentPart) -> Part:
        made: Any
        match part:
            case str():
                made = {"type": "text", "text": part}
            case Mapping():
                made = dict(part)
            case Image(url=str(url)):
                made = {"type": "image", "url": url}
            case Media():
                made = {"type": part.kind, "blob": part.blob or await self._put_media(part, self._upload)}
            case _:
                kind = type(part).__name__
                raise InvalidInput(
                    f"content: a part is a text, an Image, an Audio, a File or a part as JSON, not {kind}"
                )
        if isinstance(part, Image) and part.detail:
            made["detail"] = part.detail
        return cast("Part", made)

    async def _put_media(self, media: Media, upload: Upload) -> Blob:
        """Store the bytes of a part, unless this handle has stored them before."""
        data = await asyncio.to_thread(media.read, MAX_BLOB_BYTES)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        key = (digest, media.media_type)
        if self._handle.lacks_blobs:
            self._known.clear()
            self._handle.lacks_blobs = False
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._known.get(key)) is None:
                known = await upload(data, digest, media.media_type)
                if len(self._known) >= MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        self._locks.pop(key, None)
        return cast("Blob", {**known, "name": media.name} if media.name else dict(known))

    # Through Temporal, in chunks. The last one describes the blob, and is sent when all others are stored.

    async def _upload(self, data: bytes, digest: str, media_type: str | None) -> Blob:
        *chunks, last = [data[at : at + MAX_CHUNK_BYTES] for at in range(0, len(data), MAX_CHUNK_BYTES)] or [b""]
        # The same bytes have the same upload: one that was interrupted leaves nothing that the next does not replace.
        upload_id = digest if chunks else None
        try:
            async with asyncio.TaskGroup() as tasks:
                for part, chunk in enumerate(chunks):
                    tasks.create_task(self._send(chunk, upload_id, part))
        except* ClewError as failed:
            # Callers know the errors of the contract, and no groups.
            raise failed.exceptions[0] from None
        return await self._send_last(last, upload_id, len(chunks), digest=digest, media_type=media_type)

    async def _put_stream(self, stream: AsyncIterable[bytes], media_type: str | None, name: str | None) -> Blob:
        """Store a stream. One chunk of it is in memory."""
        upload_id, part, waiting, hashed = secrets.token_hex(16), 0, bytearray(), hashlib.sha256()
        async for piece in _limit(stream):
            hashed.update(piece)
            waiting += piece
            # The last chunk is not known before the end.
            while len(waiting) > MAX_CHUNK_BYTES:
                await self._send(bytes(waiting[:MAX_CHUNK_BYTES]), upload_id, part)
                del waiting[:MAX_CHUNK_BYTES]
                part += 1
        described = {"digest": hashed.hexdigest(), "media_type": media_type, "name": clean_name(name or "")}
        return await self._send_last(bytes(waiting), upload_id if part else None, part, **described)

    async def _send_last(self, data: bytes, upload_id: str | None, part: int, **described: str | None) -> Blob:
        return _get_blob(await self._send(data, upload_id, part, last=True, **described))

    async def _send(self, data: bytes, upload_id: str | None = None, part: int = 0, **fields: Any) -> BlobReceipt:
        fields = {"last": False, **fields, "upload_id": upload_id, "part": part, "data": b64encode(data).decode()}
        label = f"{(upload_id or fields['digest'])[:LABEL_CHARACTERS]}-{part}"
        async with self._free:
            # The worker deletes the histories of the other chunks with the last one.
            keeps = not fields["last"]
            answer = await self._run(PUT_BLOB_WORKFLOW, PutBlobInput, fields, keeps_history=keeps, label=label)
        return BlobReceipt.model_validate(answer)

    # To the store itself, where it signs URLs.

    async def start_upload(self, **fields: Any) -> UploadReceipt:
        """Have a worker sign a URL. The fields are those of `StartUploadInput`."""
        # The history, which has the URL, is deleted.
        return UploadReceipt.model_validate(await self._run(START_UPLOAD_WORKFLOW, StartUploadInput, fields))

    async def finish_upload(self, upload_id: str) -> Blob:
        """Have a worker verify and store what was uploaded, and return its description."""
        answer = await self._run(FINISH_UPLOAD_WORKFLOW, FinishUploadInput, {"upload_id": upload_id})
        return _get_blob(BlobReceipt.model_validate(answer))

    async def _upload_directly(self, data: bytes, digest: str, media_type: str | None) -> Blob:
        """Upload bytes to the store, encrypted if this client encrypts."""
        if not data:
            raise UnsupportedContent("the blob is empty")
        sealer = find_sealer(self._handle.client.data_converter)
        async with self._free:
            upload = await self.start_upload(
                bytes=len(data), media_type=media_type, digest=digest, encrypted=sealer.is_on
            )
            if upload.object_name is not None:
                data = await asyncio.to_thread(sealer.seal, data, upload.object_name)
            await asyncio.to_thread(_send_bytes, upload, data)
            return await self.finish_upload(upload.upload_id)

    # Reading.

    async def read(self, blob: Blob | str) -> AsyncGenerator[bytes, None]:
        """Read a blob in pieces, some ahead of the caller, and verify its digest at the end."""
        digest = blob if isinstance(blob, str) else blob["digest"]
        first, total = await self._read_page(digest, 0)
        if not first:
            raise ArchiveDamaged(f"blob {digest[:12]}: its first page is empty")
        hashed = hashlib.sha256(first)
        yield first
        offsets = iter(range(len(first), total, len(first)))
        ahead: deque[asyncio.Task[tuple[bytes, int]]] = deque()
        try:
            while True:
                for offset in islice(offsets, PAGES_AHEAD - len(ahead)):
                    ahead.append(asyncio.create_task(self._read_page(digest, offset)))
                if not ahead:
                    break
                data, _ = await ahead.popleft()
                hashed.update(data)
                yield data
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)
        if hashed.hexdigest() != digest:
            raise ArchiveDamaged(f"blob {digest[:12]}: the bytes that were read do not have its digest")

    async def _read_page(self, digest: str, offset: int) -> tuple[bytes, int]:
        """Read a page of a blob. Returns its bytes, and how many the blob has in all."""
        query, label = {"digest": digest, "offset": offset}, f"{digest[:LABEL_CHARACTERS]}-{offset}"
        page = BlobPage.model_validate(await self._run(GET_BLOB_WORKFLOW, GetBlobInput, query, label=label))
        return b64decode(page.data), page.blob["bytes"]

    async def _run(
        self,
        workflow: str,
        model: type[BaseModel],
        fields: Mapping[str, Any],
        *,
        keeps_history: bool = False,
        label: str = "",
    ) -> dict[str, Any]:
        command = make_input(model, {**fields, "session_id": self._handle.session_id})
        return await self._handle.run_service(workflow, command, keeps_history=keeps_history, label=label)


def _get_blob(receipt: BlobReceipt) -> Blob:
    if receipt.blob is None:
        raise ArchiveDamaged("the worker has stored the blob, and has not described it")
    return receipt.blob


async def _limit(stream: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a stream, as long as a blob may have so many bytes."""
    size = 0
    async for piece in stream:
        size += len(piece)
        if size > MAX_BLOB_BYTES:
            raise TooLarge(f"the blob has more than {MAX_BLOB_BYTES} bytes")
        yield piece


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
