"""How a client stores and reads blobs: it sends nothing twice, and believes no worker that answers other bytes."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from clew.content import File, Image, clean_name
from clew.errors import ArchiveDamaged, InvalidInput, TooLarge
from clew.session.handle import SessionHandle
from clew.session.session_blobs import AT_ONCE, SessionBlobs
from clew_workflows.contract import GET_BLOB_WORKFLOW
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_CHUNK_BYTES


class Service:
    """Stands for a session's handle: it keeps chunks, and answers as the service workflows do."""

    session_id = "s-1"
    lacks_blobs = False

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.pages: dict[int, dict[str, Any]] = {}
        self.running = self.most = 0

    async def run_service(
        self, workflow: str, argument: BaseModel, *, keeps_history: bool = True, label: str = ""
    ) -> dict[str, Any]:
        """Answer a chunk with a description if it is the last one, and a query with the next page."""
        fields = argument.model_dump(exclude_unset=True)
        if workflow == GET_BLOB_WORKFLOW:
            return self.pages[fields["offset"]]
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        self.sent.append(fields | {"keeps_history": keeps_history})
        if not fields["last"]:
            return {}
        return {"blob": {"digest": fields["digest"], "media_type": "image/png", "bytes": 7}}


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def blobs(service: Service) -> SessionBlobs:
    return SessionBlobs(cast("SessionHandle", service))


def make_page(data: bytes) -> dict[str, Any]:
    """A page of a blob of five bytes."""
    blob = {"digest": "0" * 64, "media_type": "image/png", "bytes": 5}
    return {"blob": blob, "data": b64encode(data).decode()}


async def test_chunks_come_before_the_last_one(service: Service, blobs: SessionBlobs) -> None:
    """The last chunk is sent when all others are stored, a few at a time, under the digest of all bytes."""
    data = bytes(range(256)) * (12 * MAX_CHUNK_BYTES // 256) + b"end"
    await blobs.put(data)
    *others, last = service.sent
    digest = hashlib.sha256(data).hexdigest()
    assert {chunk["upload_id"] for chunk in service.sent} == {digest} == {last["digest"]}
    assert not any(chunk["last"] for chunk in others)
    chunks = sorted(service.sent, key=lambda chunk: int(chunk["part"]))
    assert b"".join(b64decode(chunk["data"]) for chunk in chunks) == data
    assert service.most == AT_ONCE
    # The worker deletes the histories of the others.
    assert [chunk["keeps_history"] for chunk in (*others, last)] == [True] * len(others) + [False]


async def test_the_same_bytes_are_sent_once(service: Service, blobs: SessionBlobs) -> None:
    """Also where many parts have them at once; each part keeps its own name."""
    content: Any = await blobs.make_content([Image.from_bytes(b"png", name=f"{n}.png") for n in range(9)])
    assert [part["blob"]["name"] for part in content] == [f"{n}.png" for n in range(9)]
    assert len(service.sent) == 1
    # The session has refused one as unknown.
    service.lacks_blobs = True
    await blobs.make_content([Image.from_bytes(b"png"), Image.from_bytes(b"png")])
    assert len(service.sent) == 2


async def test_a_stream_has_one_chunk_in_memory(service: Service, blobs: SessionBlobs) -> None:
    """Its chunks have an upload of their own; one that ends in the middle sends no last chunk."""

    async def stream(pieces: int, *, breaks: bool) -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield bytes(600_000)
        if breaks:
            raise OSError("the connection is lost")

    await blobs.put(stream(4, breaks=False))
    assert [chunk["last"] for chunk in service.sent] == [False, False, True]
    service.sent.clear()
    with pytest.raises(OSError, match="lost"):
        await blobs.put(stream(4, breaks=True))
    assert service.sent
    assert not any(chunk["last"] for chunk in service.sent)


async def test_too_many_bytes_are_not_sent(service: Service, blobs: SessionBlobs, tmp_path: Path) -> None:
    """Bytes and files of more than the limit are refused here."""
    (tmp_path / "huge").write_bytes(bytes(MAX_BLOB_BYTES + 1))
    for source in (bytes(MAX_BLOB_BYTES + 1), tmp_path / "huge"):
        with pytest.raises(TooLarge):
            await blobs.put(source)
    assert service.sent == []


@pytest.mark.parametrize(
    "pages",
    [
        {0: make_page(b"other")},
        {0: make_page(b"by"), 2: make_page(b"by"), 4: make_page(b"s")},
        {0: make_page(b"by"), 2: make_page(b""), 4: make_page(b"s")},
        {0: make_page(b"")},
    ],
    ids=["other bytes", "the same page", "an empty page", "no page"],
)
async def test_what_a_worker_answers_is_verified(
    service: Service, blobs: SessionBlobs, pages: dict[int, dict[str, Any]]
) -> None:
    """Bytes without the digest, and pages that do not follow one another, are an error and no endless read."""
    service.pages = pages
    with pytest.raises(ArchiveDamaged):
        _ = [piece async for piece in blobs.read(hashlib.sha256(b"bytes").hexdigest())]


async def test_pages_are_joined(service: Service, blobs: SessionBlobs) -> None:
    """The pieces of a blob are its bytes."""
    service.pages = {0: make_page(b"by"), 2: make_page(b"te"), 4: make_page(b"s")}
    assert [piece async for piece in blobs.read(hashlib.sha256(b"bytes").hexdigest())] == [b"by", b"te", b"s"]


@pytest.mark.parametrize("part", [7, None, b"bytes", ["nested"], object()])
async def test_what_is_no_part_is_refused(service: Service, blobs: SessionBlobs, part: Any) -> None:
    """Nothing is sent."""
    with pytest.raises(InvalidInput):
        await blobs.make_content(["look", part])
    assert service.sent == []


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("../../x", "x"),
        ("..\\..\\x.png", "x.png"),
        ("/etc/passwd", "passwd"),
        ("a\x1b[31m\n.png", "a_[31m_.png"),
        ("..", None),
        ("pictures/", None),
        (" ", None),
        ("é" * 300, "é" * 255),
    ],
)
def test_a_name_is_no_path(name: str, cleaned: str | None) -> None:
    """It is the last part of a path, without control characters."""
    assert clean_name(name) == cleaned
    assert File.from_bytes(b"a", name=name).name == cleaned
