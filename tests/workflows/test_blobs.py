"""Images, recordings and files of sessions, stored and read through a worker."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import File, Image
from clew_workflows.contract import MAX_CHUNK_BYTES
from clew_workflows.contract.errors import ContentMismatch, InvalidInput, UnknownBlob, UnsupportedContent
from tests.support.archives import list_objects
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.stack import Stack


async def list_services(stack: Stack, session_id: str) -> list[str]:
    """List the ids of the service workflows for blobs that the server still has of a session."""
    query = " OR ".join(
        f'WorkflowId STARTS_WITH "clew-service-{verb}-{session_id}"' for verb in ("putblob", "getblob")
    )
    return [execution.id async for execution in stack.clew.temporal.list_workflows(query)]


async def wait_until_forgotten(stack: Stack, session_id: str) -> None:
    """Wait until the server has no service workflow for blobs of a session. It deletes them in the background."""
    async with asyncio.timeout(30):
        while await list_services(stack, session_id):
            await asyncio.sleep(0.1)


async def test_a_blob_is_described_by_its_bytes_and_read_again(stack: Stack, tmp_path: Path) -> None:
    """An image, a PDF and a recording are described by their headers, and read as they were written."""
    session = await stack.open()
    (tmp_path / "screen.png").write_bytes(make_png(30, 20))
    image = await session.put_blob(tmp_path / "screen.png")
    assert image == {
        "digest": hashlib.sha256(make_png(30, 20)).hexdigest(),
        "media_type": "image/png",
        "bytes": len(make_png(30, 20)),
        "width": 30,
        "height": 20,
        "name": "screen.png",
    }
    assert (await session.put_blob(make_pdf(3), media_type="application/pdf"))["pages"] == 3
    assert (await session.put_blob(make_wav(2), name="note.wav"))["seconds"] == 2
    assert await session.read_blob(image) == make_png(30, 20)
    assert await session.read_blob(hashlib.sha256(make_pdf(3)).hexdigest()) == make_pdf(3)
    await wait_until_forgotten(stack, session.id)


async def test_a_large_blob_comes_in_chunks_and_leaves_no_history(stack: Stack) -> None:
    """A blob of over 5 MB is stored and read in chunks, of which neither store nor server keeps anything."""
    session, data = await stack.open(), make_png(40, 40, size=5_500_000)
    blob = await session.put_blob(data)
    assert (blob["bytes"], blob["width"]) == (len(data), 40)
    pieces = [piece async for piece in session.stream_blob(blob)]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= MAX_CHUNK_BYTES
    stored = [path for path in await list_objects(stack.store) if f"s-{session.id}/" in path]
    assert not [path for path in stored if "/uploads/" in path]
    assert sum(path.endswith(f"/blobs/{blob['digest']}") for path in stored) == 1
    await wait_until_forgotten(stack, session.id)


async def test_a_stream_is_stored_without_its_digest(stack: Stack) -> None:
    """A stream of pieces of any size gives the blob of its bytes."""
    session, data = await stack.open(), make_png(50, 50, size=2_300_000)

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 700_001):
            yield data[start : start + 700_001]

    blob = await session.put_blob(stream(), name="pictures/huge.png")
    assert blob["digest"] == hashlib.sha256(data).hexdigest()
    assert blob.get("name") == "huge.png"


async def test_content_with_bytes_is_stored_and_named(stack: Stack) -> None:
    """A message takes texts, images and files in order; the thread names their blobs, and has no bytes."""
    session, image = await stack.open(), make_png(60, 61)
    await session.ask(["What is wrong here?", Image.from_bytes(image, name="a.png"), File.from_bytes(make_pdf(1))])
    (entry,) = [entry for entry in await session.entries(kind="ai_message") if entry.refs.get("source") == "message"]
    content: Any = entry.as_dict()["payload"]["content"]
    assert [part["type"] for part in content] == ["text", "image", "file"]
    assert content[1]["blob"]["name"] == "a.png"
    assert await session.read_blob(content[1]["blob"]) == image


@pytest.mark.parametrize(
    ("data", "media_type", "refusal"),
    [
        (make_png(), "image/jpeg", ContentMismatch),
        (make_png()[:20], None, ContentMismatch),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", UnsupportedContent),
        (b"<html><script>alert(1)</script></html>", "image/png", ContentMismatch),
        (b"\x7fELF" + b"\0" * 100, None, UnsupportedContent),
        (b"", None, UnsupportedContent),
    ],
)
async def test_bytes_that_are_not_what_they_are_declared_are_refused(
    stack: Stack, data: bytes, media_type: str | None, refusal: type[Exception]
) -> None:
    """Another type than the declared one, a damaged header, and a type that no model reads have their refusals."""
    session = stack.clew.session("test-blobs-refused")
    with pytest.raises(refusal):
        await session.put_blob(data, media_type=media_type)


async def test_a_session_reads_only_the_blobs_of_its_family(stack: Stack) -> None:
    """A fork reads its origin's blobs. Another session does not, and an unknown digest is refused."""
    session, other = await stack.open(), await stack.open()
    await session.ask("hello")
    blob = await session.put_blob(make_png(70, 71))
    fork = await session.fork()
    assert await fork.read_blob(blob) == make_png(70, 71)
    for reader, digest in ((other, blob["digest"]), (session, "0" * 64)):
        with pytest.raises(UnknownBlob):
            await reader.read_blob(digest)


async def test_an_upload_without_one_of_its_chunks_is_refused_and_can_be_repeated(stack: Stack) -> None:
    """The last chunk is refused while another one is missing; after that one has come it is taken."""
    session, data = await stack.open(), make_png(80, 81, size=1_500_000)
    blobs: Any = session._blobs
    with pytest.raises(InvalidInput):
        await blobs._send(data[MAX_CHUNK_BYTES:], upload_id="mine", part=1, last=True)
    for _ in range(2):
        await blobs._send(data[:MAX_CHUNK_BYTES], upload_id="mine", part=0, last=False)
    receipt = await blobs._send(data[MAX_CHUNK_BYTES:], upload_id="mine", part=1, last=True)
    assert receipt.blob["digest"] == hashlib.sha256(data).hexdigest()


async def test_a_wrong_digest_is_refused(stack: Stack) -> None:
    """Bytes that changed on their way are refused."""
    session = await stack.open()
    blobs: Any = session._blobs
    with pytest.raises(ContentMismatch):
        await blobs._send(make_png(), last=True, digest="0" * 64)
