"""Uploads: the bytes of a blob come by a signed URL of the store, and count once they are verified.

`start` signs a URL for an object of this upload alone, and writes a ticket: what may be uploaded, and until when.
`finish` reads the object within the ticket's limits, verifies it as `PutBlob` does, and stores it as a blob. The
ticket of a finished upload names the blob, so that `finish` can be repeated. The URL cannot change the ticket.

A URL that has not expired takes bytes again after `finish`. Nothing reads them. They are deleted with the session, or
by a rule of the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, ValidationError
from pydantic_core import from_json, to_json
from temporalio import activity

from clew_activities.archive.archive_errors import ObjectDamaged, ObjectMissing, translate_archive_errors
from clew_activities.archive.blob_store import Blobs
from clew_activities.archive.formats import hash_bytes
from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract import FinishUploadInput, StartUploadInput
from clew_workflows.contract.content import Blob
from clew_workflows.contract.errors import (
    ContentMismatch,
    InvalidInput,
    NotEncrypted,
    TooLarge,
    UnknownUpload,
    UnsupportedContent,
    UploadExpired,
    UploadUnavailable,
)
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from clew_workflows.contract.outputs import BlobReceipt, UploadReceipt
from clew_workflows.encryption import Changed, Unsealed
from clew_workflows.session.advance import format_timestamp
from clew_workflows.values import Format, Value

FORMAT = Format("upload ticket")


class Ticket(Value):
    """What may be uploaded to one URL.

    Attributes:
        expires_at: When the URL expires, and until when the upload can be finished.
        bytes: The number of bytes.
        media_type: Their declared type.
        name: The name of the file.
        digest: Their digest; None: any.
        blob: The blob that the upload has become; None: it is not finished.
    """

    expires_at: AwareDatetime
    bytes: int
    media_type: str | None = None
    name: str | None = None
    digest: str | None = None
    blob: Blob | None = None


class Uploads:
    """Signs URLs for uploads, and makes blobs of what was uploaded."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._archive = blobs.archive

    async def start(self, request: StartUploadInput, upload_id: str, now: datetime) -> UploadReceipt:
        """Sign a URL for an upload.

        Raises:
            InvalidInput: The bytes are to be encrypted, and the store is not.
            NotEncrypted: The bytes are not to be encrypted, and the store is.
            TooLarge: No blob may have so many bytes.
            UploadUnavailable: The store signs no URLs.
        """
        if request.bytes > MAX_BLOB_BYTES:
            raise TooLarge(f"the blob has {request.bytes} bytes, at most {MAX_BLOB_BYTES} are stored")
        lifetime = timedelta(seconds=request.expires_seconds)
        signed = await self._archive.sign_upload(request.session_id, upload_id, lifetime)
        if signed is None:
            raise UploadUnavailable(
                "the workers' store signs no URLs: a bucket of S3, Google Cloud Storage or Azure does. Store the "
                "blob with PutBlob"
            )
        if self._archive.encrypts and not request.encrypted:
            raise NotEncrypted(
                "the store is encrypted, and a browser has no keys: send the bytes to a backend that stores them "
                "with PutBlob, or upload them from a client that has the keys (in Python put_blob with direct=True)"
            )
        if request.encrypted and not self._archive.encrypts:
            raise InvalidInput("encrypted: the workers have no keys: upload the bytes as they are")
        put, object_name = signed
        ticket = Ticket(
            expires_at=now + lifetime,
            bytes=request.bytes,
            media_type=request.media_type,
            name=request.name,
            digest=request.digest,
        )
        await self._put_ticket(request.session_id, upload_id, ticket)
        return UploadReceipt(
            upload_id=upload_id,
            url=put.url,
            headers=put.headers,
            expires_at=format_timestamp(ticket.expires_at),
            object_name=object_name if request.encrypted else None,
        )

    async def finish(self, session_id: str, upload_id: str, now: datetime) -> Blob:
        """Verify what was uploaded, and store it as a blob. The upload is deleted, also when it is refused for good.

        Raises:
            ContentMismatch: The bytes have another number, digest or type than was declared.
            NotEncrypted: They are not encrypted, and the store is.
            ObjectDamaged: The ticket is damaged.
            TooLarge: There are more than was declared, or the image has too many pixels.
            UnknownKey: They are encrypted with a key that this worker does not have.
            UnknownUpload: The session has no such upload, or nothing was uploaded.
            UnsupportedContent: No model can read a file of that type.
            UploadExpired: The time of the upload is over.
        """
        ticket = await self._get_ticket(session_id, upload_id)
        if ticket.blob is None:
            async with self._end_if_refused(session_id, upload_id), self._blobs.assembling:
                if now >= ticket.expires_at:
                    raise UploadExpired(f"upload {upload_id} expired at {format_timestamp(ticket.expires_at)}")
                ticket = await self._store(session_id, upload_id, ticket)
        await self._archive.delete_staged(session_id, upload_id, ticket=False)
        assert ticket.blob is not None, "it is stored"
        return ticket.blob

    async def _store(self, session_id: str, upload_id: str, ticket: Ticket) -> Ticket:
        try:
            data = await self._read(session_id, upload_id, ticket)
        except ObjectMissing:
            # Another call may have finished the upload meanwhile.
            ticket = await self._get_ticket(session_id, upload_id)
            if ticket.blob is None:
                raise UnknownUpload(
                    f"nothing was uploaded to the URL of upload {upload_id}: upload it first"
                ) from None
            return ticket
        family = await self._blobs.find_family(session_id)
        blob = await self._blobs.store(family, data, media_type=ticket.media_type, name=ticket.name)
        finished = ticket.model_copy(update={"blob": blob})
        await self._put_ticket(session_id, upload_id, finished)
        return finished

    async def _read(self, session_id: str, upload_id: str, ticket: Ticket) -> bytes:
        """Read what was uploaded, and check it against the ticket."""
        try:
            data = await self._archive.get_staged(session_id, upload_id, ticket.bytes)
        except TooLarge:
            raise TooLarge(f"more bytes were uploaded than the {ticket.bytes} that were declared") from None
        except Unsealed:
            raise NotEncrypted("what was uploaded is not encrypted, and the store is") from None
        except Changed:
            raise ContentMismatch(
                "what was uploaded was changed since it was encrypted, or was encrypted for another upload"
            ) from None
        if len(data) < ticket.bytes:
            raise ContentMismatch(f"{len(data)} bytes were uploaded, {ticket.bytes} were declared")
        if ticket.digest not in (None, digest := hash_bytes(data)):
            raise ContentMismatch(f"the bytes have the digest {digest}, not {ticket.digest}")
        return data

    @asynccontextmanager
    async def _end_if_refused(self, session_id: str, upload_id: str) -> AsyncIterator[None]:
        """Delete an upload that is refused and that no repetition would change."""
        try:
            yield
        except (ContentMismatch, NotEncrypted, TooLarge, UnsupportedContent, UploadExpired):
            await self._archive.delete_staged(session_id, upload_id, ticket=True)
            raise

    async def _put_ticket(self, session_id: str, upload_id: str, ticket: Ticket) -> None:
        fields = {"clew": "upload", "version": FORMAT.version, **ticket.model_dump(mode="json")}
        await self._archive.put_ticket(session_id, upload_id, to_json(fields))

    async def _get_ticket(self, session_id: str, upload_id: str) -> Ticket:
        try:
            return read_ticket(await self._archive.get_ticket(session_id, upload_id), upload_id)
        except ObjectMissing:
            raise UnknownUpload(
                f"the session has no upload {upload_id!r}: start one, and upload to its URL"
            ) from None


def read_ticket(data: bytes, upload_id: str) -> Ticket:
    """Read a ticket.

    Raises:
        NewerVersion: A newer version of Clew has written it.
        ObjectDamaged: It is not a ticket.
    """
    name = f"the ticket of upload {upload_id}"
    try:
        value = from_json(data)
        return Ticket.model_validate(FORMAT.upgrade(value, FORMAT.check(value["version"], name)))
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise ObjectDamaged(name, str(error)[:200]) from None


class UploadActivities:
    """Starts and finishes uploads for clients."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    @activity.defn(name="start_upload")
    async def start_upload(self, request: StartUploadInput) -> dict[str, Any]:
        """Sign a URL. The upload has the id of the workflow run that asks for it, also in a retry."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            upload_id = (activity.info().workflow_run_id or "").replace("-", "")
            return (await self._uploads.start(request, upload_id, datetime.now(UTC))).as_dict()

    @activity.defn(name="finish_upload")
    async def finish_upload(self, request: FinishUploadInput) -> dict[str, Any]:
        """Verify what was uploaded, and store it. A retry stores the same again."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            blob = await self._uploads.finish(request.session_id, request.upload_id, datetime.now(UTC))
            return BlobReceipt(blob=blob).as_dict()
