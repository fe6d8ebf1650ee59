"""Blobs that are uploaded to signed URLs of a bucket: a real server that speaks S3, a worker, and a client."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Image, Session
from clew.contract import UploadReceipt
from clew.errors import (
    ArchiveUnavailable,
    ContentMismatch,
    InvalidInput,
    NotEncrypted,
    TooLarge,
    UnknownKey,
    UnknownUpload,
    UnsupportedContent,
    UploadExpired,
    UploadUnavailable,
)
from clew_activities.archive import Archive, Store
from clew_activities.archive.uploads import read_ticket
from clew_audit.verification import rekey_archive
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_UPLOAD_SECONDS
from clew_workflows.encryption import Encryption
from tests.support.archives import list_objects
from tests.support.cluster import find_cluster
from tests.support.encrypted import make_encryption, run_worker
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.s3 import BUCKET, make_s3_env, run_s3
from tests.support.stack import Stack

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
HTML = b"<html><script>alert(1)</script></html>"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Find the local cluster's server that speaks S3, or run one; this process has its address and credentials."""
    if find_cluster():
        yield os.environ["AWS_ENDPOINT_URL"]
        return
    with run_s3() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in make_s3_env(address).items():
            patch.setenv(name, value)
        yield address


@pytest.fixture(scope="module")
async def plain(stack: Stack, s3: str) -> AsyncIterator[Stack]:
    """Run a worker without keys, whose store is a bucket."""
    store = Store.from_url(f"s3://{BUCKET}/plain/{uuid.uuid4().hex}")
    async with run_worker(stack, Encryption(), store=store) as running:
        yield running


@pytest.fixture(scope="module")
async def encrypted(stack: Stack, s3: str) -> AsyncIterator[Stack]:
    """Run a worker with keys, whose store is a bucket."""
    encryption = make_encryption("k1", "k2")
    store = Store.from_url(f"s3://{BUCKET}/encrypted/{uuid.uuid4().hex}", sealer=encryption.sealer)
    async with run_worker(stack, encryption, store=store) as running:
        yield running


async def send(upload: UploadReceipt, data: bytes) -> None:
    """Send bytes to a signed URL, as a browser does."""
    async with httpx.AsyncClient() as browser:
        answer = await browser.request(upload.method, upload.url, headers=upload.headers, content=data)
    assert answer.status_code == 200, answer.text


async def list_staged(stack: Stack, session: Session) -> list[str]:
    """List what is staged for a session."""
    return sorted(await list_objects(stack.store, f"default/staged/s-{session.id}"))


def flip_last_bit(data: bytes) -> bytes:
    """Change the last bit of some bytes."""
    return data[:-1] + bytes([data[-1] ^ 1])


def start(session: Session, **declared: Any) -> Any:
    """Start an upload with fields that the client's own method does not have."""
    blobs: Any = session._blobs
    return blobs.start_upload(**declared)


async def test_a_browser_uploads_without_passing_through_the_backend(plain: Stack) -> None:
    """What is sent to the URL becomes the blob that `put_blob` would make, and a model is asked about it."""
    session, image = await plain.open(), make_png(30, 20, size=3_000_000)
    upload = await session.start_upload(len(image), name="screen.png", media_type="image/png")
    assert (upload.method, upload.object_name) == ("PUT", None)
    await send(upload, image)
    blob = await session.finish_upload(upload.upload_id)
    assert blob == await session.put_blob(image, name="screen.png")
    assert await session.read_blob(blob) == image
    assert await session.ask(["What is wrong here?", Image.from_blob(blob)]) == "fine"
    assert await list_staged(plain, session) == [f"default/staged/s-{session.id}/{upload.upload_id}.json"]


@pytest.mark.parametrize("data", [make_png(31, 21), make_pdf(2), make_wav(1), "Zeile für Zeile\n".encode()])
async def test_an_upload_needs_no_declared_type(plain: Stack, data: bytes) -> None:
    """Without a declared type and digest a blob is described by its bytes, as `put_blob` describes it."""
    session = await plain.open()
    upload = await session.start_upload(len(data))
    await send(upload, data)
    assert await session.finish_upload(upload.upload_id) == await session.put_blob(data)


WRONG_ALIKE: tuple[tuple[dict[str, Any], bytes, type[Exception]], ...] = (
    ({"size": len(make_png()) - 1}, make_png(), TooLarge),
    ({"media_type": "image/jpeg"}, make_png(), ContentMismatch),
    ({"media_type": "image/png"}, HTML, ContentMismatch),
    ({}, make_png()[:20], ContentMismatch),
    ({}, b"\x7fELF" + bytes(100), UnsupportedContent),
    ({"size": 1}, b"", ContentMismatch),
)
"""Uploads that are wrong as one of the quick run is."""


@pytest.mark.parametrize(
    ("declared", "data", "refusal"),
    [
        ({"digest": "0" * 64}, make_png(), ContentMismatch),
        ({"size": len(make_png()) + 1}, make_png(), ContentMismatch),
        ({"size": 10}, make_png(32, 22, size=2_000_000), TooLarge),
        ({"media_type": "application/pdf"}, make_png() + make_pdf(1), ContentMismatch),
        ({"media_type": "image/svg+xml"}, SVG, UnsupportedContent),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in WRONG_ALIKE),
    ],
)
async def test_bytes_that_are_not_what_was_declared_are_refused(
    plain: Stack, declared: dict[str, Any], data: bytes, refusal: type[Exception]
) -> None:
    """Other bytes, too many, too few, another type and a type that no model reads are refused and deleted."""
    session = await plain.open()
    upload = await session.start_upload(**{"size": len(data), **declared})
    await send(upload, data)
    with pytest.raises(refusal):
        await session.finish_upload(upload.upload_id)
    assert await list_staged(plain, session) == []
    assert not [path for path in await list_objects(plain.store) if f"s-{session.id}/blobs/" in path]
    with pytest.raises(UnknownUpload):
        await session.finish_upload(upload.upload_id)


async def test_an_upload_belongs_to_its_session(plain: Stack) -> None:
    """Another session and a fork cannot finish it, nor can an id that was made up; its own session still can."""
    session, other, image = await plain.open(), await plain.open(), make_png(33, 23)
    await session.ask("hello")
    fork = await session.fork()
    upload = await session.start_upload(len(image))
    await send(upload, image)
    for stranger, upload_id in ((other, upload.upload_id), (fork, upload.upload_id), (session, "made-up")):
        with pytest.raises(UnknownUpload):
            await stranger.finish_upload(upload_id)
    with pytest.raises(InvalidInput):
        await other.finish_upload(f"../s-{session.id}/{upload.upload_id}")
    blob = await session.finish_upload(upload.upload_id)
    assert await fork.read_blob(blob) == image


async def test_an_upload_without_bytes_can_still_be_made(plain: Stack) -> None:
    """Before anything is uploaded it is refused, and it can be finished when the bytes have come."""
    session, image = await plain.open(), make_png(34, 24)
    upload = await session.start_upload(len(image))
    with pytest.raises(UnknownUpload):
        await session.finish_upload(upload.upload_id)
    await send(upload, image)
    assert (await session.finish_upload(upload.upload_id))["width"] == 34


async def test_a_finished_upload_keeps_its_blob(plain: Stack) -> None:
    """Finished twice it answers the same; bytes that come later change nothing, and are deleted."""
    session, image = await plain.open(), make_png(35, 25)
    upload = await session.start_upload(len(image), name="a.png")
    await send(upload, image)
    blob = await session.finish_upload(upload.upload_id)
    await send(upload, make_png(36, 26))
    assert await session.finish_upload(upload.upload_id) == blob
    assert await session.read_blob(blob) == image
    assert await list_staged(plain, session) == [f"default/staged/s-{session.id}/{upload.upload_id}.json"]


async def test_an_expired_upload_is_refused(plain: Stack) -> None:
    """After its time an upload cannot be finished, and nothing of it is left. The URL is not valid for longer."""
    session, image = await plain.open(), make_png(37, 27)
    upload = await session.start_upload(len(image), expires_seconds=120)
    assert httpx.URL(upload.url).params["X-Amz-Expires"] == "120"
    await send(upload, image)
    archive = Archive(plain.store, "default")
    ticket = read_ticket(await archive.get_ticket(session.id, upload.upload_id), upload.upload_id)
    earlier = ticket.model_copy(update={"expires_at": ticket.expires_at - timedelta(seconds=121)})
    written = {"version": 1, **earlier.model_dump(mode="json")}
    await archive.put_ticket(session.id, upload.upload_id, httpx.Request("PUT", "s3://", json=written).content)
    with pytest.raises(UploadExpired):
        await session.finish_upload(upload.upload_id)
    assert await list_staged(plain, session) == []
    with pytest.raises(InvalidInput):
        await session.start_upload(len(image), expires_seconds=MAX_UPLOAD_SECONDS + 1)


async def test_a_blob_that_is_too_large_gets_no_url(plain: Stack) -> None:
    """More bytes than any blob may have are refused before anything is uploaded."""
    session = await plain.open()
    with pytest.raises(TooLarge):
        await session.start_upload(MAX_BLOB_BYTES + 1)
    assert await list_staged(plain, session) == []


async def test_what_is_staged_is_deleted_with_the_session(plain: Stack) -> None:
    """Uploads that were never finished are deleted with their session, also if a fork keeps the family."""
    session, image = await plain.open(), make_png(38, 28)
    await session.ask("hello")
    fork = await session.fork()
    for _ in range(2):
        await send(await session.start_upload(len(image)), image)
    own = await fork.start_upload(len(image))
    await plain.clew.delete(session.id)
    assert await list_staged(plain, session) == []
    await send(own, image)
    assert (await fork.finish_upload(own.upload_id))["width"] == 38


async def test_the_client_uploads_to_the_store_itself(plain: Stack, tmp_path: Path) -> None:
    """`put_blob` with `direct` takes bytes, a path and a stream, and stores what it stores without."""
    session, image = await plain.open(), make_png(39, 29, size=1_500_000)
    (tmp_path / "screen.png").write_bytes(image)

    async def stream() -> AsyncIterator[bytes]:
        yield image[:1_000]
        yield image[1_000:]

    blob = await session.put_blob(image, direct=True)
    assert blob["digest"] == hashlib.sha256(image).hexdigest()
    assert await session.put_blob(tmp_path / "screen.png", direct=True) == {**blob, "name": "screen.png"}
    assert await plain.clew.session(session.id).put_blob(stream(), direct=True) == blob
    assert await session.read_blob(blob) == image
    with pytest.raises(UnsupportedContent):
        await session.put_blob(b"", direct=True)
    with pytest.raises(ContentMismatch):
        await session.put_blob(make_png(40, 30), media_type="image/jpeg", direct=True)


async def test_a_refusal_of_the_store_does_not_repeat_the_url(plain: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store refuses the bytes, the error has its status, and neither the signature nor the path."""
    session, image = await plain.open(), make_png(41, 31)
    blobs: Any = session._blobs
    made = await session.start_upload(len(image))
    elsewhere = made.model_copy(update={"url": made.url.replace(f"/{BUCKET}/", "/no-such-bucket/")})

    async def start_elsewhere(**_declared: Any) -> UploadReceipt:
        return elsewhere

    monkeypatch.setattr(blobs, "start_upload", start_elsewhere)
    with pytest.raises(ArchiveUnavailable) as caught:
        await session.put_blob(image, direct=True)
    # SeaweedFS first verifies the signature, which is for another bucket; Moto verifies none.
    assert ("HTTP 403" if find_cluster() else "HTTP 404") in str(caught.value)
    assert "Signature" not in str(caught.value)
    assert made.upload_id not in str(caught.value)


async def test_a_store_without_signed_urls_says_so(stack: Stack, tmp_path: Path) -> None:
    """A folder and memory refuse with a word of their own, and `put_blob` still works."""
    for store in (Store.from_url((tmp_path / "store").as_uri()), Store.from_url("memory://")):
        async with run_worker(stack, Encryption(), store=store) as running:
            session = await running.open()
            for attempt in (session.start_upload(10), session.put_blob(make_png(42, 32), direct=True)):
                with pytest.raises(UploadUnavailable):
                    await attempt
            assert (await session.put_blob(make_png(42, 32)))["width"] == 42
            assert await list_staged(running, session) == []


async def test_a_browser_without_keys_is_refused(encrypted: Stack) -> None:
    """Where encryption is on, no URL is signed for bytes that will not be encrypted, and such bytes are refused."""
    session, image = await encrypted.open(), make_png(43, 33)
    with pytest.raises(NotEncrypted):
        await session.start_upload(len(image))
    upload = await start(session, bytes=len(image), encrypted=True)
    await send(upload, image)
    with pytest.raises(NotEncrypted):
        await session.finish_upload(upload.upload_id)
    assert await list_staged(encrypted, session) == []


async def test_a_store_without_keys_takes_nothing_encrypted(plain: Stack) -> None:
    """A caller that would encrypt is refused where the workers have no keys."""
    session = await plain.open()
    with pytest.raises(InvalidInput):
        await start(session, bytes=10, encrypted=True)


async def test_a_client_with_keys_encrypts_before_it_uploads(
    encrypted: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket never has the bytes of the image; the session reads them, and a model is asked about them."""
    session, image = await encrypted.open(), make_png(44, 34, size=1_200_000)
    seen: list[bytes] = []
    read = Archive.get_staged

    async def look(archive: Archive, session_id: str, upload: str, max_bytes: int) -> bytes:
        raw: Any = encrypted.store
        seen.append(await raw._objects.get(f"default/staged/s-{session_id}/{upload}"))
        return await read(archive, session_id, upload, max_bytes)

    monkeypatch.setattr(Archive, "get_staged", look)
    blob = await session.put_blob(image, direct=True)
    assert [image[300:330] in staged for staged in seen] == [False]
    assert await session.read_blob(blob) == image
    assert await session.ask(["look", Image.from_blob(blob)]) == "fine"


async def test_bytes_that_were_encrypted_for_another_upload_or_with_another_key_are_refused(
    encrypted: Stack,
) -> None:
    """What was encrypted for another upload, was changed since, or has an unknown key is not stored."""
    session, image = await encrypted.open(), make_png(45, 35)
    other = await start(session, bytes=len(image), encrypted=True)
    ours, theirs = make_encryption("k2", "k1").sealer, make_encryption("k3").sealer
    cases: tuple[tuple[Callable[[str], bytes], type[Exception]], ...] = (
        (lambda _name: ours.seal(image, other.object_name), ContentMismatch),
        (lambda name: flip_last_bit(ours.seal(image, name)), ContentMismatch),
        (lambda name: theirs.seal(image, name), UnknownKey),
        (lambda name: ours.seal(image * 2, name), TooLarge),
        (lambda name: ours.seal(image[:-1], name), ContentMismatch),
    )
    for seal, refusal in cases:
        upload = await start(session, bytes=len(image), encrypted=True)
        await send(upload, seal(upload.object_name))
        with pytest.raises(refusal):
            await session.finish_upload(upload.upload_id)
    await send(other, ours.seal(image, other.object_name))
    assert (await session.finish_upload(other.upload_id))["width"] == 45


async def test_a_rekeying_leaves_uploads_alone(encrypted: Stack) -> None:
    """Bytes that somebody uploads without a key are no problem of the archive."""
    session, image = await encrypted.open(), make_png(46, 36)
    await send(await start(session, bytes=len(image), encrypted=True), image)
    assert (await rekey_archive(Archive(encrypted.store, "default"))).problems == []
