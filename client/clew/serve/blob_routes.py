"""The routes `/v1/sessions/{id}/blobs` and `/uploads`: images, recordings and files of a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from clew.content import find_raster_type
from clew.serve.access import Authorized
from clew.serve.answers import BlobRow, BlobsList, ErrorBody, answer
from clew.serve.bodies import read_body
from clew.serve.sessions import Known
from clew.serve.worker_watch import WatchedRoute
from clew.session.session_blobs import read_named
from clew_workflows.contract.content import BlobName, Digest, MediaType
from clew_workflows.contract.inputs import UploadId
from clew_workflows.contract.limits import MAX_UPLOAD_SECONDS, UPLOAD_SECONDS
from clew_workflows.contract.outputs import BlobReceipt, UploadReceipt
from clew_workflows.contract.validation import Input

MAX_LISTED = 1000
"""Most blobs of a list."""
BLOB_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    # A digest always names the same bytes.
    "Cache-Control": "private, max-age=31536000, immutable",
}
"""The headers of a blob: a browser runs nothing in it, and no page of another origin embeds it."""
BYTES: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
"""The body of a request or an answer that is a file, for the OpenAPI document."""

router = APIRouter(
    prefix="/v1/sessions/{session_id}",
    tags=["blobs"],
    responses={"default": {"model": ErrorBody}},
    route_class=WatchedRoute,
)


class UploadInput(Input):
    """An upload to the workers' store itself.

    Attributes:
        bytes: The number of bytes that will be uploaded.
        media_type: Their type. Absent: the type that their first bytes have.
        name: The name of the file.
        digest: Their SHA-256. Absent: any.
        expires_seconds: The URL is valid for so many seconds.
    """

    bytes: Annotated[int, Field(ge=1)]
    media_type: MediaType | None = None
    name: BlobName | None = None
    digest: Digest | None = None
    expires_seconds: int = Field(default=UPLOAD_SECONDS, ge=1, le=MAX_UPLOAD_SECONDS)


@router.post(
    "/blobs",
    response_model=BlobReceipt,
    openapi_extra={"requestBody": {"required": True, **BYTES}},
)
async def put_blob(
    request: Request,
    caller: Authorized,
    session: Known,
    media_type: Annotated[
        str | None,
        Query(max_length=200, description="The type, such as `application/pdf`; absent: that of the first bytes."),
    ] = None,
    name: Annotated[str | None, Query(min_length=1, max_length=255, description="The name of the file.")] = None,
) -> JSONResponse:
    """Store the bytes that the body is. The answer describes the blob, for a part of a message."""
    blob = await session.put_blob(request.stream(), media_type=media_type, name=name)
    return answer(caller, BlobReceipt(blob=blob))


@router.get("/blobs", response_model=BlobsList)
async def list_blobs(caller: Authorized, session: Known) -> JSONResponse:
    """List the blobs that the thread names."""
    rows: list[BlobRow] = []
    async with aclosing(read_named(session.read())) as named:
        async for each in named:
            rows.append(BlobRow(**each))
            if len(rows) == MAX_LISTED:
                break
    return answer(caller, BlobsList(blobs=rows))


@router.get(
    "/blobs/{digest}",
    response_class=StreamingResponse,
    responses={200: BYTES},
)
async def get_blob(session: Known, digest: Annotated[Digest, Path()]) -> StreamingResponse:
    """Read a blob. A browser shows images of four types, and saves all others."""
    pieces = session.stream_blob(digest)
    # Before the first piece nothing is sent: an error has a status of its own.
    first = await anext(pieces)
    shown = find_raster_type(first)
    headers = {**BLOB_HEADERS, "Content-Disposition": "inline" if shown else "attachment"}
    media_type = shown or "application/octet-stream"
    return StreamingResponse(_send(first, pieces), media_type=media_type, headers=headers)


async def _send(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece


@router.post("/uploads", response_model=UploadReceipt)
async def start_upload(
    caller: Authorized, session: Known, body: Annotated[UploadInput, read_body(UploadInput)]
) -> JSONResponse:
    """Have a URL of the store signed, to which the caller uploads the bytes itself."""
    receipt = await session.start_upload(
        body.bytes,
        media_type=body.media_type,
        name=body.name,
        digest=body.digest,
        expires_seconds=body.expires_seconds,
    )
    return answer(caller, receipt)


@router.post("/uploads/{upload_id}", response_model=BlobReceipt)
async def finish_upload(caller: Authorized, session: Known, upload_id: Annotated[UploadId, Path()]) -> JSONResponse:
    """Verify what was uploaded, and store it."""
    return answer(caller, BlobReceipt(blob=await session.finish_upload(upload_id)))
