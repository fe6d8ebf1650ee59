"""Blobs: images, recordings and files of a session and its forks. Each is stored once, under its digest.

A blob is two objects of the archive: its bytes, and what was read from their headers. The name of a file and the type
that a caller declares are in the messages that name the blob.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, GetWorkflowExecutionHistoryRequest
from temporalio.converter import WorkflowSerializationContext
from temporalio.service import RPCError

from clew_activities.archive.archive import Archive
from clew_activities.archive.archive_errors import ObjectDamaged, ObjectMissing, translate_archive_errors
from clew_activities.archive.ended_runs import describe_run
from clew_activities.archive.formats import hash_bytes
from clew_activities.heartbeats import send_heartbeats
from clew_activities.inspection import Inspected, Inspection, choose_type
from clew_workflows.contract import GetBlobInput, PutBlobInput
from clew_workflows.contract.content import Blob, iterate_blobs
from clew_workflows.contract.errors import ContentMismatch, InvalidInput, Refusal, TooLarge, UnknownBlob
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_CHUNK_BYTES
from clew_workflows.contract.outputs import BlobPage, BlobReceipt
from clew_workflows.contract.payloads import AssistantMessage, OperationPayload, ToolMessage, UserMessage
from clew_workflows.protocol import BlobProblem, BlobsChecked, CheckBlobs, EndUpload
from clew_workflows.thread.entries import Entry
from clew_workflows.values import Format

FORMAT = Format("blob description")
MAX_CACHED_BYTES = 64 * 1024 * 1024
"""Most bytes of blobs that a worker keeps in memory beside those that it reads and writes at the time."""
CHECKED_AT_ONCE = 8
"""Blobs of a message that a worker looks up at the same time."""
MAX_AT_ONCE = 2
"""Uploads that a worker has in memory, and blobs that it reads into memory, at the same time; others wait."""
MAX_DELETIONS = 8
"""Chunks of an upload that are deleted at the same time."""
READ_TIMEOUT = timedelta(seconds=20)
"""Time within which the server must answer with the first event of a history."""
_MEASURED = ("width", "height", "pages", "seconds")
_blob: TypeAdapter[Blob] = TypeAdapter(Blob)


class Blobs:
    """Stores and reads blobs, and keeps the newest that were read in memory.

    Attributes:
        archive: The archive.
        assembling: Held by an upload while all its bytes are in memory.
    """

    def __init__(self, archive: Archive, *, max_cached_bytes: int = MAX_CACHED_BYTES) -> None:
        self.archive = archive
        self._inspection = Inspection()
        self._max_cached_bytes = max_cached_bytes
        self._cached: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._reading = asyncio.Semaphore(MAX_AT_ONCE)
        self.assembling = asyncio.Semaphore(MAX_AT_ONCE)

    async def find_family(self, session_id: str) -> str:
        """Find the family whose objects a session has: its own if it has no archive yet."""
        head = await self.archive.read_head(session_id)
        return head.family if head else session_id

    async def store(
        self, family: str, data: bytes, *, media_type: str | None = None, name: str | None = None
    ) -> Blob:
        """Inspect a blob and store it. Returns its description.

        Args:
            family: The family that keeps it.
            data: The bytes.
            media_type: The type that they are declared to have; None: the one that they have.
            name: The name of the file, for the description.

        Raises:
            ContentMismatch: They have another type, or begin like an image that has no size.
            TooLarge: The blob or the image is too large.
            UnsupportedContent: No model can read a file of that type.
        """
        inspected = await self._inspection.inspect(data)
        chosen = choose_type(media_type, inspected["media_type"])
        description = to_json({"clew": "blob", "version": FORMAT.version, **inspected})
        digest = await self.archive.put_blob(family, data, description)
        return _describe(digest, inspected, chosen, name)

    async def read(self, family: str, digest: str) -> bytes:
        """Read a blob. Its digest is verified.

        Raises:
            ObjectDamaged: The stored bytes are not those of the digest.
            UnknownBlob: The family has no such blob.
        """
        key = (family, digest)
        if (cached := self._cached.get(key)) is not None:
            self._cached.move_to_end(key)
            return cached
        async with self._reading:
            # Another call may have read it meanwhile.
            if (cached := self._cached.get(key)) is None:
                try:
                    cached = await self.archive.get_blob(family, digest)
                except ObjectMissing:
                    raise make_unknown(digest) from None
                self._keep(key, cached)
            return cached

    async def describe(self, family: str, digest: str) -> Blob:
        """Read the description of a blob, without a name and with the type of its first bytes.

        Raises:
            ObjectDamaged: The description is damaged.
            UnknownBlob: The family has no such blob.
        """
        try:
            data = await self.archive.get_description(family, digest)
        except ObjectMissing:
            raise make_unknown(digest) from None
        inspected = read_description(data, digest)
        return _describe(digest, inspected, inspected["media_type"], None)

    async def check(self, family: str, blobs: Iterable[Blob]) -> None:
        """Check that blobs are stored, and that their descriptions are those of their bytes.

        Raises:
            ContentMismatch: A description is not that of the bytes.
            UnknownBlob: The family has no such blob, or its stored description is damaged.
        """
        for refusal in (await self.find_problems(family, blobs)).values():
            raise refusal

    async def find_problems(self, family: str, blobs: Iterable[Blob]) -> dict[int, Refusal]:
        """Find which blobs cannot be named, by their numbers, each with the refusal that `check` raises."""
        checks, problems = [self._check(family, blob) for blob in blobs], dict[int, Refusal]()
        for start in range(0, len(checks), CHECKED_AT_ONCE):
            # All of them end before an error is raised.
            results = await asyncio.gather(*checks[start : start + CHECKED_AT_ONCE], return_exceptions=True)
            for number, error in enumerate(results, start):
                if isinstance(error, Refusal):
                    problems[number] = error
                elif error is not None:
                    for unstarted in checks[start + CHECKED_AT_ONCE :]:
                        unstarted.close()
                    raise error
        return problems

    async def _check(self, family: str, blob: Blob) -> None:
        try:
            stored = await self.describe(family, blob["digest"])
        except ObjectDamaged as error:
            raise UnknownBlob(f"{error}: store it with PutBlob again") from None
        check_description(blob, stored)
        if not await self.archive.holds_blob(family, blob["digest"]):
            raise make_unknown(blob["digest"])

    async def copy(self, source: str, target: str, blobs: Iterable[Blob]) -> None:
        """Copy blobs from one family to another, as far as that one does not have them.

        Raises:
            ContentMismatch: A description is not that of the bytes.
            ObjectDamaged: A stored blob or description is damaged.
            UnknownBlob: Neither family has a blob.
        """
        for blob in blobs:
            try:
                await self.check(target, (blob,))
            except UnknownBlob:
                await self.check(source, (blob,))
                await self.store(target, await self.read(source, blob["digest"]), media_type=blob["media_type"])

    def _keep(self, key: tuple[str, str], data: bytes) -> None:
        self._cached[key] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > self._max_cached_bytes:
            _, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= len(dropped)


def list_blobs(entry: Entry) -> list[Blob]:
    """List the blobs that an entry names."""
    match entry.body:
        case UserMessage() | AssistantMessage() | ToolMessage() as message:
            return list(iterate_blobs((message.content,)))
        case OperationPayload(snapshot=snapshot) if snapshot:
            return list(iterate_blobs(message["content"] for message in snapshot.messages))
        case _:
            return []


def check_description(blob: Blob, stored: Blob) -> None:
    """Check a description that a message has against the one that was stored with the bytes.

    Raises:
        ContentMismatch: The type cannot be that of the bytes, or another field is not that of the bytes.
    """
    choose_type(blob["media_type"], stored["media_type"])
    for field in ("bytes", *_MEASURED):
        if blob.get(field) != stored.get(field):
            raise ContentMismatch(
                f"blob {blob['digest'][:12]}…: its {field} is {stored.get(field)}, not {blob.get(field)}: send the "
                "description that PutBlob has answered"
            )


def read_description(data: bytes, digest: str) -> Inspected:
    """Read a stored description.

    Raises:
        NewerVersion: A newer version of Clew has written it.
        ObjectDamaged: It is not a description.
    """
    name = f"the description of blob {digest[:12]}"
    try:
        value = from_json(data)
        fields = FORMAT.upgrade(value, FORMAT.check(value["version"], name))
        measured: Any = {field: fields[field] for field in ("media_type", "bytes", *_MEASURED) if field in fields}
        _blob.validate_python({"digest": digest, **measured})
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise ObjectDamaged(name, str(error)[:200]) from None
    return cast("Inspected", measured)


def make_unknown(digest: str) -> UnknownBlob:
    """Make the refusal of a blob that a session does not have."""
    return UnknownBlob(f"the session has no blob {digest[:12]}…: store it with PutBlob first")


def _describe(digest: str, inspected: Inspected, media_type: str, name: str | None) -> Blob:
    described: Any = {"digest": digest, **inspected, "media_type": media_type}
    if name is not None:
        described["name"] = name
    return _blob.validate_python(described)


class BlobActivities:
    """Stores and reads blobs for clients, and checks those that messages name."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._archive = blobs.archive

    @activity.defn(name="put_blob")
    async def put_blob(self, request: PutBlobInput) -> dict[str, Any]:
        """Store the chunk that the workflow was started with; with the last one put the blob together and store it.

        `request` has no bytes. A retry stores the same again.
        """
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            data = await _read_chunk()
            family = await self._blobs.find_family(request.session_id)
            if request.upload_id is None:
                return await self._finish(family, request, data)
            if not request.last:
                info = activity.info()
                source = info.workflow_id or "", info.workflow_run_id or ""
                replaced = await self._archive.put_chunk(family, request.upload_id, request.part, source, data)
                if replaced and replaced != source:
                    await _delete_history(*replaced)
                return BlobReceipt().as_dict()
            async with self._blobs.assembling:
                return await self._finish(family, request, await self._join(family, request.upload_id, request, data))

    @activity.defn(name="end_upload")
    async def end_upload(self, request: EndUpload) -> dict[str, Any]:
        """Delete the chunks of an upload, and the event histories of the workflows that have brought them."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            family = await self._blobs.find_family(request.session_id)
            free = asyncio.Semaphore(MAX_DELETIONS)
            async with asyncio.TaskGroup() as tasks:
                async for path in self._archive.list_chunks(family, request.upload_id):
                    await free.acquire()
                    deletion = tasks.create_task(self._delete_chunk(path))
                    deletion.add_done_callback(lambda _: free.release())
            return {}

    async def _find_readable(self, request: GetBlobInput) -> str:
        """Find the family whose blobs may be read by the id of a session.

        Raises:
            UnknownBlob: The session was deleted, and its forks have kept its blobs: they are read by their ids.
        """
        head = await self._archive.read_head(request.session_id)
        if head:
            return head.family
        if await self._archive.has_members(request.session_id) and not await describe_run(request.session_id):
            raise make_unknown(request.digest)
        return request.session_id

    @activity.defn(name="get_blob")
    async def get_blob(self, request: GetBlobInput) -> dict[str, Any]:
        """Read one page of a blob of the session's family."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            family = await self._find_readable(request)
            blob = await self._blobs.describe(family, request.digest)
            data = await self._blobs.read(family, request.digest)
            page = data[request.offset :][:MAX_CHUNK_BYTES]
            end = request.offset + len(page)
            if not page:
                raise InvalidInput(f"offset: the blob has {len(data)} bytes")
            return BlobPage(
                blob=blob, data=b64encode(page).decode(), next_offset=end if end < len(data) else None
            ).as_dict()

    @activity.defn(name="check_blobs")
    async def check_blobs(self, request: CheckBlobs) -> BlobsChecked:
        """Check that blobs which a message names are stored, and that their descriptions are true."""
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            problems = await self._blobs.find_problems(request.family, request.blobs)
            return BlobsChecked(
                problems=tuple(
                    BlobProblem(blob=number, type=refusal.type, message=refusal.message)
                    for number, refusal in problems.items()
                )
            )

    async def _delete_chunk(self, path: str) -> None:
        # The history first: the chunk says which.
        with suppress(ObjectDamaged, ObjectMissing):
            await _delete_history(*await self._archive.get_chunk_source(path))
        await self._archive.delete_chunk(path)

    async def _finish(self, family: str, request: PutBlobInput, data: bytes) -> dict[str, Any]:
        digest = hash_bytes(data)
        if request.digest not in (None, digest):
            raise ContentMismatch(f"the bytes have the digest {digest}, not {request.digest}: send them again")
        blob = await self._blobs.store(family, data, media_type=request.media_type, name=request.name)
        return BlobReceipt(blob=blob).as_dict()

    async def _join(self, family: str, upload_id: str, request: PutBlobInput, last: bytes) -> bytes:
        """Join the chunks of an upload.

        Raises:
            InvalidInput: A chunk is missing.
            TooLarge: The blob would be too large.
        """
        joined = bytearray()
        for part in range(request.part):
            try:
                joined += await self._archive.get_chunk(family, upload_id, part)
            except ObjectMissing:
                # Another upload of the same bytes may have been faster, or the answer to this one was lost.
                if request.digest and await self._archive.holds_blob(family, request.digest):
                    return await self._blobs.read(family, request.digest)
                raise InvalidInput(
                    f"part: chunk {part} of upload {upload_id!r} is not stored: send it, and the last one again"
                ) from None
            if len(joined) + len(last) > MAX_BLOB_BYTES:
                raise TooLarge(f"the blob has more than {MAX_BLOB_BYTES} bytes")
        return bytes(joined + last)


async def _read_chunk() -> bytes:
    """Read the bytes that the activity's workflow was started with, from the first event of its history.

    Raises:
        InvalidInput: They are not base64.
        TooLarge: They are more than a chunk may have.
    """
    client, info = activity.client(), activity.info()
    workflow_id = info.workflow_id or ""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=info.workflow_run_id or ""),
        maximum_page_size=1,
    )
    page = await client.workflow_service.get_workflow_execution_history(request, retry=True, timeout=READ_TIMEOUT)
    payloads = page.history.events[0].workflow_execution_started_event_attributes.input.payloads
    converter = client.data_converter.with_context(WorkflowSerializationContext(client.namespace, workflow_id))
    (started,) = await converter.decode(payloads, [PutBlobInput])
    try:
        data = b64decode(started.data, validate=True)
    except ValueError:
        raise InvalidInput("data: it is not base64") from None
    if len(data) > MAX_CHUNK_BYTES:
        raise TooLarge(f"the chunk has {len(data)} bytes, at most {MAX_CHUNK_BYTES} are taken")
    return data


async def _delete_history(workflow_id: str, run_id: str) -> None:
    """Delete the event history of a workflow, if the server lets the worker; else its retention time does."""
    client = activity.client()
    request = DeleteWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
    )
    try:
        await client.workflow_service.delete_workflow_execution(request)
    except RPCError as error:
        activity.logger.info("the history of workflow %s was not deleted: %s", workflow_id, error)
