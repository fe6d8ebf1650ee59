"""Blobs in an archive: what a store loses or alters is found, and sent again it is whole; hostile descriptions."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from clew_activities.archive import Archive, ObjectDamaged, Store, StoreUnavailable
from clew_activities.archive.blob_store import CHECKED_AT_ONCE, Blobs, check_description, list_blobs, read_description
from clew_workflows.contract.content import Blob
from clew_workflows.contract.errors import ContentMismatch, NewerVersion, UnknownBlob, UnsupportedContent
from clew_workflows.thread.entries import Entry
from tests.support.archives import list_objects
from tests.support.media import make_pdf, make_png, make_wav

FOLDER = "default/families/s-root/blobs"


def make_blobs(store: Store, **options: Any) -> Blobs:
    return Blobs(Archive(store, "default"), **options)


async def test_a_blob_is_stored_once_with_its_description(store: Store) -> None:
    """The same bytes under another name and type are the same two objects."""
    blobs = make_blobs(store)
    first = await blobs.store("root", b"a,b\n", media_type="text/csv", name="a.csv")
    again = await blobs.store("root", b"a,b\n", name="b.txt")
    assert (first["media_type"], again["media_type"]) == ("text/csv", "text/plain")
    assert first["digest"] == again["digest"] == hashlib.sha256(b"a,b\n").hexdigest()
    assert await list_objects(store) == {f"{FOLDER}/{first['digest']}", f"{FOLDER}/{first['digest']}.json"}


@pytest.mark.parametrize("altered", [make_png(7, 7), None, b"", b"\0" * len(make_png())])
async def test_bytes_that_the_store_has_lost_or_altered_come_back(store: Store, altered: bytes | None) -> None:
    """Reading them is an error, also where their size is right; the same bytes sent again replace them."""
    blob = await make_blobs(store).store("root", make_png())
    path = f"{FOLDER}/{blob['digest']}"
    await (store.delete(path) if altered is None else store.put(path, altered))
    with pytest.raises(UnknownBlob if altered is None else ObjectDamaged):
        await make_blobs(store).read("root", blob["digest"])
    assert await make_blobs(store).store("root", make_png()) == blob
    assert await make_blobs(store).read("root", blob["digest"]) == make_png()


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"version": "one"}',
        b'{"clew": "blob", "version": 1}',
        b'{"clew": "blob", "version": 1, "media_type": "text/html\\r\\nX: 1", "bytes": 7}',
        b'{"clew": "blob", "version": 1, "media_type": "image/png", "bytes": "7"}',
        b'{"clew": "blob", "version": 1, "media_type": "image/png", "bytes": 1000000000000}',
        b'{"clew": "blob", "version": 1, "media_type": "image/png", "bytes": 7, "width": -5}',
        b'{"clew": "blob", "version": 1, "media_type": "image/png", "bytes": 7, "seconds": true}',
    ],
    ids=lambda description: repr(description[:12] + description[-20:]),
)
async def test_a_forged_description_is_damage(store: Store, description: bytes) -> None:
    """It is refused where it is read. A message cannot name the blob until its bytes are sent again."""
    with pytest.raises(ObjectDamaged):
        read_description(description, "0" * 64)
    blobs = make_blobs(store)
    blob = await blobs.store("root", make_png())
    await store.put(f"{FOLDER}/{blob['digest']}.json", description)
    with pytest.raises(UnknownBlob):
        await blobs.check("root", (blob,))
    await blobs.store("root", make_png())
    await blobs.check("root", (blob,))


def test_a_description_of_a_later_release_is_told_apart() -> None:
    """A worker of that release reads it."""
    with pytest.raises(NewerVersion):
        read_description(b'{"clew": "blob", "version": 99, "media_type": "image/png", "bytes": 7}', "0" * 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes": 1},
        {"width": 31},
        {"height": 1},
        {"pages": 2},
        {"seconds": 1.0},
        {"media_type": "image/gif"},
        {"media_type": "text/html"},
    ],
)
async def test_a_message_cannot_say_something_else_of_a_blob(store: Store, changes: Any) -> None:
    """Nor add a field, nor leave one out: budgets and codecs rely on them."""
    blobs = make_blobs(store)
    blob: Any = await blobs.store("root", make_png())
    described: Any = {**blob, **changes}
    with pytest.raises(ContentMismatch):
        await blobs.check("root", (described,))
    without: Any = {name: value for name, value in blob.items() if name != "width"}
    with pytest.raises(ContentMismatch):
        check_description(without, blob)


async def test_a_family_reads_its_own_blobs_alone(store: Store) -> None:
    """A family reads no description and no bytes of another one, not even from the cache."""
    blobs = make_blobs(store)
    blob = await blobs.store("root", make_png())
    await blobs.read("root", blob["digest"])
    for read in (blobs.read, blobs.describe):
        with pytest.raises(UnknownBlob):
            await read("other", blob["digest"])
    for digest in ("../blobs/x", f"../../s-root/blobs/{blob['digest']}", "", "0" * 63, blob["digest"].upper()):
        with pytest.raises(UnknownBlob):
            await blobs.read("other", digest)


async def test_each_of_many_blobs_has_its_own_problem(store: Store) -> None:
    """Those of a message are looked up some at a time; what is wrong with one says nothing of the others."""
    blobs = make_blobs(store)
    stored: list[Any] = [await blobs.store("root", make_png(width)) for width in range(1, 2 * CHECKED_AT_ONCE + 2)]
    named: list[Any] = [{**stored[0], "digest": "0" * 64}, *stored, {**stored[1], "width": 9999}]
    problems = await blobs.find_problems("root", named)
    assert {number: type(problem) for number, problem in problems.items()} == {
        0: UnknownBlob,
        len(named) - 1: ContentMismatch,
    }


class Unreachable(Store):
    """A store that answers nothing."""

    def __init__(self) -> None:
        self.asked = 0

    async def get(self, path: str) -> bytes:
        self.asked += 1
        raise StoreUnavailable(path, "the network is gone")


async def test_a_store_that_does_not_answer_is_asked_a_few_times() -> None:
    """Thousands of blobs of one message do not wait for it one after another."""
    store, blob = Unreachable(), Blob(digest="0" * 64, media_type="image/png", bytes=7)
    with pytest.raises(StoreUnavailable):
        await make_blobs(store).check("root", [blob] * 1000)
    assert store.asked == CHECKED_AT_ONCE


async def test_the_cache_is_bounded(store: Store) -> None:
    """The blobs that were read last are in memory, and no more than the limit."""
    blobs = make_blobs(store, max_cached_bytes=5_000)
    stored = [await blobs.store("root", make_png(size=2_000 + number)) for number in range(4)]
    for blob in stored:
        await blobs.read("root", blob["digest"])
    for blob in stored:
        await store.delete(f"{FOLDER}/{blob['digest']}")
    assert await blobs.read("root", stored[3]["digest"])
    with pytest.raises(UnknownBlob):
        await blobs.read("root", stored[0]["digest"])


async def test_a_copy_needs_its_source_once(store: Store) -> None:
    """What the target has is not read; what neither has is unknown."""
    blobs = make_blobs(store)
    blob = await blobs.store("root", make_pdf(1))
    await blobs.copy("root", "copy", (blob,))
    await store.delete(f"{FOLDER}/{blob['digest']}")
    await blobs.copy("root", "copy", (blob,))
    assert await make_blobs(store).read("copy", blob["digest"]) == make_pdf(1)
    with pytest.raises(UnknownBlob):
        await blobs.copy("root", "third", (blob,))


@pytest.mark.parametrize("polyglot", [make_png() + b"<script>alert(1)</script>", make_wav(1) + make_pdf(1)])
async def test_a_polyglot_is_what_its_first_bytes_are(store: Store, polyglot: bytes) -> None:
    """It is stored under that type; any other one is refused."""
    blobs = make_blobs(store)
    blob = await blobs.store("root", polyglot)
    assert blob["media_type"] in ("image/png", "audio/wav")
    for declared in ("text/html", "application/pdf", "image/svg+xml", "application/xhtml+xml"):
        with pytest.raises((ContentMismatch, UnsupportedContent)):
            await blobs.store("root", polyglot, media_type=declared)


def test_entries_name_their_blobs() -> None:
    """Messages and snapshots do; entries of other kinds name none."""
    blob = {"digest": "0" * 64, "media_type": "image/png", "bytes": 7}
    content: Any = [{"type": "text", "text": "a"}, {"type": "image", "blob": blob}]
    message = {"context_ref": "default", "role": "user", "content": content}
    snapshot = {"messages": [{"role": "user", "content": content}], "tokens": [1]}
    replace = {"type": "replace", "reason": "manual", "result_context": snapshot}
    operation = {"op_id": "o", "context_ref": "default", "operation": replace}
    error = {"type": "internal", "message": json.dumps(content), "details": {"blob": blob}}
    named = {
        kind: list_blobs(Entry(0, "e", kind, "", payload, {}, 0))  # type: ignore[arg-type]
        for kind, payload in (("ai_message", message), ("ai_context_operation", operation), ("error", error))
    }
    assert named == {"ai_message": [blob], "ai_context_operation": [blob], "error": []}
