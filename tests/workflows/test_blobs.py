"""Images, recordings and files of sessions, stored and read through a worker."""

from __future__ import annotations

import asyncio
import hashlib
import io
import struct
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import Clew, Entry, File, Image
from clew.local import temporal_server
from clew.session.handle import SessionHandle
from clew_activities.archive import Archive, Store
from clew_audit.exports import export_session, import_session
from clew_audit.verification import verify_archive
from clew_workflows.contract import START_UPLOAD_WORKFLOW, StartUploadInput
from clew_workflows.contract.errors import (
    ArchiveDamaged,
    ContentMismatch,
    InvalidInput,
    ServerUnreachable,
    TooLarge,
    UnknownBlob,
    UnsupportedContent,
    UploadUnavailable,
)
from clew_workflows.contract.limits import MAX_CHUNK_BYTES
from tests.support.archives import list_objects
from tests.support.encrypted import make_encryption, read_history_bytes, run_worker
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.rolling import make_id
from tests.support.stack import Stack, serve
from tests.support.waiting import wait_until


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


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_600_000, pytest.param(5_500_000, marks=pytest.mark.slow)])
async def test_a_large_blob_comes_in_chunks_of_which_none_is_left(stack: Stack, size: int) -> None:
    """A blob of some MB is stored and read in chunks, of which the store keeps none."""
    session, data = await stack.open(), make_png(40, 40, size=size)
    blob = await session.put_blob(data)
    assert (blob["bytes"], blob["width"]) == (len(data), 40)
    pieces = [piece async for piece in session.stream_blob(blob)]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= MAX_CHUNK_BYTES
    stored = [path for path in await list_objects(stack.store) if f"s-{session.id}/" in path]
    assert not [path for path in stored if "/uploads/" in path]
    assert sum(path.endswith(f"/blobs/{blob['digest']}") for path in stored) == 1


async def test_a_stream_is_stored_without_its_digest(stack: Stack) -> None:
    """A stream of pieces of any size gives the blob of its bytes."""
    session, data = await stack.open(), make_png(50, 50, size=1_200_000)

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 300_001):
            yield data[start : start + 300_001]

    blob = await session.put_blob(stream(), name="pictures/huge.png")
    assert blob["digest"] == hashlib.sha256(data).hexdigest()
    assert blob.get("name") == "huge.png"


async def test_content_with_bytes_is_stored_and_named(stack: Stack) -> None:
    """A message takes texts, images and files in order; the thread names their blobs, and has no bytes."""
    session, image = await stack.open(), make_png(60, 61)
    await session.ask(["What is wrong here?", Image.from_bytes(image, name="a.png"), File.from_bytes(make_pdf(1))])
    content: Any = (await session.entries(kind="ai_message"))[0].as_dict()["payload"]["content"]
    assert [part["type"] for part in content] == ["text", "image", "file"]
    assert content[1]["blob"]["name"] == "a.png"
    assert await session.read_blob(content[1]["blob"]) == image


async def test_a_text_in_another_encoding_is_taken_as_a_text(stack: Stack) -> None:
    """A short text in UTF-16, whose first bytes are also those of a recording."""
    session = await stack.open("fine")
    await session.ask(["Read it.", File.from_bytes("Hello world".encode("utf-16"), name="a.txt")])
    content: Any = (await session.entries(kind="ai_message"))[0].as_dict()["payload"]["content"]
    assert content[1]["blob"]["media_type"] == "text/plain"


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


@pytest.mark.slow
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


@pytest.mark.parametrize("size", [1, MAX_CHUNK_BYTES + 1, 3 * MAX_CHUNK_BYTES])
async def test_an_upload_that_fails_raises_the_error_of_the_contract(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also if the blob has several chunks, which are sent at the same time."""

    async def fail(_handle: SessionHandle, *_arguments: Any, **_options: Any) -> None:
        raise ServerUnreachable("it is away")

    monkeypatch.setattr(SessionHandle, "run_service", fail)
    session = stack.clew.session(make_id())
    with pytest.raises(ServerUnreachable):
        await session.put_blob(b"x" * size)


async def test_a_wrong_digest_is_refused(stack: Stack) -> None:
    """Bytes that changed on their way are refused."""
    session = await stack.open()
    blobs: Any = session._blobs
    with pytest.raises(ContentMismatch):
        await blobs._send(make_png(), last=True, digest="0" * 64)


def name_blob(data: bytes, **changes: Any) -> dict[str, Any]:
    """Describe a PNG as a client that has stored nothing would."""
    width, height = struct.unpack(">II", data[16:24])
    described = {"digest": hashlib.sha256(data).hexdigest(), "media_type": "image/png", "bytes": len(data)}
    return described | {"width": width, "height": height} | changes


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"digest": "0" * 64}, UnknownBlob),
        ({"bytes": 7}, ContentMismatch),
        ({"width": 7}, ContentMismatch),
        ({"media_type": "image/jpeg"}, ContentMismatch),
        ({"media_type": "application/pdf"}, UnsupportedContent),
        ({"media_type": "image/svg+xml"}, UnsupportedContent),
    ],
)
async def test_a_message_with_a_blob_that_is_not_there_is_refused(
    stack: Stack, changes: dict[str, Any], refusal: type[Exception]
) -> None:
    """A blob that is not stored, or is not what the message says, is refused, and nothing of it is in the thread."""
    session, image = await stack.open(), make_png(90, 91)
    await session.put_blob(image)
    part = {"type": "image", "blob": name_blob(image, **changes)}
    with pytest.raises(refusal):
        await session.ask(["look", part])
    assert not await session.entries(kind="ai_message")
    assert await session.ask(["look", {"type": "image", "blob": name_blob(image)}]) == "fine"


async def test_messages_keep_their_order_while_blobs_are_looked_up(stack: Stack) -> None:
    """A text that was sent after an image is committed after it."""
    session = await stack.open(on_busy="queue")
    blob = await session.put_blob(make_png(92, 93))
    first = await session.message(["one", Image.from_blob(blob)])
    second = await session.message("two")
    await asyncio.gather(first.result(), second.result())
    said = [entry.as_dict()["payload"] for entry in await session.entries(kind="ai_message")]
    assert [str(message["content"])[:40].count("one") for message in said if message["role"] == "user"] == [1, 0]


async def test_a_refused_signal_with_a_blob_leaves_an_input_entry(stack: Stack) -> None:
    """A signal has no answer: its refusal is an `input` entry that names the blob's digest."""
    session = await stack.open()
    await session.ask("hello")
    workflow = stack.clew.temporal.get_workflow_handle(session.id)
    await workflow.signal("inject", {"content": [{"type": "image", "blob": name_blob(make_png(94, 95))}]})

    async def list_rejected() -> list[Entry]:
        return [entry for entry in await session.entries(kind="input") if "rejected" in str(entry.as_dict())]

    await wait_until(list_rejected)
    assert not [entry for entry in await session.entries(kind="ai_message") if "image/png" in str(entry.as_dict())]


@pytest.mark.slow
async def test_limits_of_blobs_are_the_sessions(stack: Stack) -> None:
    """A blob, the blobs of a message, and those of a session that exceed their limit are refused."""
    small, large = make_png(96, 97), make_png(98, 99, size=50_000)
    for limits, contents in (
        ({"max_blob_bytes": 40_000}, [[large]]),
        ({"max_message_blob_bytes": 50_000}, [[small, large]]),
        ({"max_session_blob_bytes": 60_000}, [[large], [large]]),
    ):
        session = await stack.open(limits=limits)
        for images in contents[:-1]:
            await session.ask([Image.from_bytes(image) for image in images])
        with pytest.raises(TooLarge):
            await session.ask([Image.from_bytes(image) for image in contents[-1]])
        assert await session.ask([Image.from_bytes(small)]) == "fine"


async def test_an_image_adds_its_description_to_the_history_and_nothing_else(stack: Stack) -> None:
    """A message with an image of 500 KB adds less than 3 KB beside those of a text, and no byte of the image."""
    session, image = await stack.open(), make_png(100, 101, size=500_000)
    await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)

    async def measure(content: Any) -> int:
        before = len(await read_history_bytes(handle))
        await session.ask(content)
        return len(await read_history_bytes(handle)) - before

    text = await measure("hello")
    assert await measure(["hello", Image.from_bytes(image, name="a.png")]) - text < 3_000
    history = await read_history_bytes(handle)
    assert image[200:230] not in history
    assert b64encode(image[201:231]) not in history


@pytest.mark.slow
async def test_blobs_are_encrypted_where_encryption_is_on(stack: Stack) -> None:
    """Neither the store nor the server has the bytes of an image in plain form, and the client reads them again."""
    async with run_worker(stack, make_encryption("k1")) as encrypted:
        session, image = await encrypted.open(), make_png(102, 103, size=1_200_000)
        blob = await session.put_blob(image)
        assert await session.read_blob(blob) == image
        assert await session.ask(["look", Image.from_blob(blob)]) == "fine"
        paths = [path for path in await list_objects(encrypted.store) if "/blobs/" in path]
        assert len(paths) == 2
        for path in paths:
            raw: Any = encrypted.store
            stored = await raw._objects.get(path)
            assert image[300:330] not in stored
            assert b"image/png" not in stored


async def test_a_damaged_and_a_lost_blob_are_told_apart(stack: Stack) -> None:
    """A changed object is reported as damaged when it is read, and a lost one is unknown, also at the door."""
    session = await stack.open()
    damaged, lost = await session.put_blob(make_png(104, 105)), await session.put_blob(make_png(106, 107))
    folder = f"default/families/s-{session.id}/blobs"
    await stack.store.put(f"{folder}/{damaged['digest']}", make_png(1, 1))
    await stack.store.delete(f"{folder}/{lost['digest']}")
    with pytest.raises(ArchiveDamaged):
        await session.read_blob(damaged)
    with pytest.raises(UnknownBlob):
        await session.read_blob(lost)
    with pytest.raises(UnknownBlob):
        await session.ask([Image.from_blob(lost)])
    again = stack.clew.session(session.id)
    assert await again.ask(["again", Image.from_bytes(make_png(106, 107))]) == "fine"


@pytest.mark.slow
async def test_blobs_go_with_exports_and_imports(stack: Stack) -> None:
    """A file of a session carries each of its blobs once; the imported session has them, verified."""
    session, image = await stack.open(), make_png(108, 109, size=1_200_000)
    for _ in range(2):
        await session.ask(["look", Image.from_bytes(image)])
    await session.close()
    archive, file = Archive(stack.store, "default"), io.BytesIO()
    await export_session(stack.clew.temporal, archive, session.id, file)
    assert file.tell() < 1.4 * len(image) + 100_000
    file.seek(0)
    copy, _ = await import_session(
        stack.clew.temporal, archive, file, session_id=f"{session.id}-copy", task_queue=stack.clew.task_queue
    )
    assert (await verify_archive(archive, copy)).blobs == 1
    assert await stack.clew.session(copy).read_blob(hashlib.sha256(image).hexdigest()) == image


async def test_a_verification_names_a_blob_that_is_damaged(stack: Stack) -> None:
    """A verification reads each blob once, and reports the one that is not what was written."""
    session, archive = await stack.open(), Archive(stack.store, "default")
    blob = await session.put_blob(make_png(110, 111))
    await session.ask([Image.from_blob(blob)])
    await session.ask([Image.from_blob(blob)])
    await session.close()
    report = await verify_archive(archive, session.id)
    assert (report.blobs, report.problems) == (1, [])
    await stack.store.put(f"default/families/s-{session.id}/blobs/{blob['digest']}", b"other")
    assert any(blob["digest"] in problem for problem in (await verify_archive(archive, session.id)).problems)


@pytest.mark.slow
async def test_a_deletion_keeps_the_blobs_of_forks(stack: Stack) -> None:
    """After the origin is deleted its fork still reads the image; after both, nothing of it is stored."""
    session = await stack.open()
    await session.ask(["look", Image.from_bytes(make_png(112, 113))])
    fork = await session.fork()
    await stack.clew.delete(session.id)
    assert await fork.read_blob(hashlib.sha256(make_png(112, 113)).hexdigest()) == make_png(112, 113)
    await stack.clew.delete(fork.id)
    assert not [path for path in await list_objects(stack.store) if f"s-{session.id}/" in path]


@pytest.mark.slow
async def test_a_checkpoint_takes_its_images_along(stack: Stack) -> None:
    """A session that is restored from a checkpoint has its blobs, also when the first session is deleted later."""
    session = await stack.open()
    await session.ask(["look", Image.from_bytes(make_png(114, 115))])
    token = await session.checkpoint()
    restored = await stack.clew.restore(token)
    await stack.clew.delete(session.id)
    digest = hashlib.sha256(make_png(114, 115)).hexdigest()
    assert await restored.read_blob(digest) == make_png(114, 115)
    with pytest.raises(UnknownBlob):
        await stack.clew.restore(token)


async def test_the_last_chunk_can_be_repeated(stack: Stack) -> None:
    """A caller that has lost the answer sends the last chunk again, and gets the same description."""
    session, data = await stack.open(), make_png(116, 117, size=1_200_000)
    blobs: Any = session._blobs
    digest = hashlib.sha256(data).hexdigest()
    await blobs._send(data[:MAX_CHUNK_BYTES], upload_id="mine", part=0, last=False)
    last = {"upload_id": "mine", "part": 1, "last": True, "digest": digest}
    first = await blobs._send(data[MAX_CHUNK_BYTES:], **last)
    assert await blobs._send(data[MAX_CHUNK_BYTES:], **last) == first


@pytest.mark.slow
async def test_the_server_keeps_no_history_of_an_upload(stack: Stack) -> None:
    """The histories of the workflows that have brought a blob, read it, and signed a URL, are deleted.

    So is that of another caller's upload, with the session. On a server of its own: it deletes them when the others
    are booked.
    """
    # How soon it books: by default after minutes.
    quick = {f"history.{queue}ProcessorUpdateAckInterval": "1s" for queue in ("transfer", "visibility", "timer")}
    async with temporal_server(ui=False, dynamic_config=quick) as server:
        clew = await Clew.connect(server.address)
        async with serve(clew, stack.environ, store=Store.from_url("memory://")):
            session = await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model("fine"))
            blob = await session.put_blob(make_png(118, 119, size=2_500_000))
            await session.read_blob(blob)
            with pytest.raises(UploadUnavailable):
                await session.start_upload(10)

            async def list_services() -> list[str]:
                named = [execution.id async for execution in clew.temporal.list_workflows()]
                return [name for name in named if "blob-" in name or "upload-" in name]

            async def is_forgotten() -> bool:
                return not await list_services()

            await wait_until(is_forgotten)
            command = StartUploadInput(session_id=session.id, bytes=10)
            with pytest.raises(UploadUnavailable):
                await session._handle.run_service(START_UPLOAD_WORKFLOW, command)
            await wait_until(list_services)
            await clew.delete(session.id)
            await wait_until(is_forgotten)


@pytest.mark.slow
async def test_an_upload_leaves_no_history(stack: Stack) -> None:
    """The workflow of a chunk has its bytes once and says in its id which it is. It is deleted, also if replaced."""
    session, data = await stack.open(), make_png(118, 119, size=2_500_000)
    blobs: Any = session._blobs
    digest = hashlib.sha256(data).hexdigest()
    await blobs._send(data[:MAX_CHUNK_BYTES], upload_id=digest, part=0, last=False)
    prefix = f"clew-service-putblob-{session.id}/{digest[:12]}"
    temporal = stack.clew.temporal

    async def list_uploads() -> list[str]:
        query = f'WorkflowType = "PutBlob" AND WorkflowId STARTS_WITH "clew-service-putblob-{session.id}"'
        return [workflow.id async for workflow in temporal.list_workflows(query)]

    await wait_until(list_uploads)
    (first,) = await list_uploads()
    assert first.startswith(f"{prefix}-0-")
    history = await read_history_bytes(temporal.get_workflow_handle(first))
    assert len(history) < 1.4 * MAX_CHUNK_BYTES
    await session.put_blob(data)

    async def has_none() -> bool:
        return not await list_uploads()

    await wait_until(has_none)


@pytest.mark.slow
async def test_an_upload_writes_no_warning(stack: Stack, capfd: pytest.CaptureFixture[str]) -> None:
    """The SDK writes nothing to standard error about the size of a chunk: people upload from terminals."""
    session = await stack.open()
    data = make_png(120, 121, size=1_000_000)
    assert await session.read_blob(await session.put_blob(data)) == data
    assert "payloads with size" not in capfd.readouterr().err
