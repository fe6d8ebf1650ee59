"""An archive is read completely, and encrypted anew while it is in use."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clew import Clew
from clew.errors import NotFound, UnknownKey
from clew.local import ToolCall
from clew_activities.archive import Archive, Head, Store
from clew_activities.archive.blob_store import Blobs
from clew_audit.verification import BLOBS_AT_ONCE, rekey_archive, verify_archive
from tests.support.archives import ArchiveInUse, begin_archive, extend_archive, make_entries, read_files
from tests.support.command_line import run_clew
from tests.support.encrypted import make_encryption, write_keys
from tests.support.media import make_png
from tests.support.rolling import make_id
from tests.support.scripts import make_tool_script
from tests.support.stack import Stack

SIZE = 5_000
TEXT = b"x" * SIZE


async def test_a_stored_result_is_read(stack: Stack, clew: Clew, archive: Archive) -> None:
    """It is counted while it is whole; a shorter one, another one of its size and none are problems."""
    model = stack.add_model(make_tool_script(ToolCall("flood", {"size": SIZE})))
    limits = {"max_tool_result_bytes": 1_024}
    session = await clew.open(make_id(), model=model, tools=["flood"], limits=limits)
    await session.ask("flood")
    await session.close()
    path = f"default/families/s-{session.id}/results/{hashlib.sha256(TEXT).hexdigest()}"
    report = await verify_archive(archive, session.id)
    assert (report.results, report.problems) == (1, [])
    for damaged, says in ((b"x" * 10, "checksum"), (b"y" * SIZE, "checksum"), (None, "missing")):
        await stack.store.delete(path)
        if damaged is not None:
            await stack.store.put(path, damaged)
        report = await verify_archive(archive, session.id)
        assert report.results == 1
        (problem,) = report.problems
        assert "the result in entry" in problem
        assert says in problem


async def test_a_session_that_is_archived_meanwhile_is_whole(archive_in_use: ArchiveInUse) -> None:
    """The state that the head named is deleted before it is read: the newer one counts."""
    report = await verify_archive(archive_in_use, archive_in_use.session.id)
    assert report.problems == []
    assert archive_in_use.replaced


async def test_a_session_without_an_archive_is_not_found(clew: Clew, archive: Archive) -> None:
    """There is nothing to verify."""
    with pytest.raises(NotFound, match="has no archive in this store"):
        await verify_archive(archive, make_id())


def open_archive(folder: Path, *kids: str, accepts_plain: bool = False) -> Archive:
    """Open the archive in a folder with these keys."""
    encryption = make_encryption(*kids, accepts_plain=accepts_plain)
    return Archive(Store.from_url(folder.as_uri(), sealer=encryption.sealer), "default")


async def begin(archive: Archive, session_id: str) -> Head:
    """Archive a session of 40 entries with a tool result."""
    head = await begin_archive(archive, session_id, make_entries(0, 40))
    await archive.put_result(head.family, b"a large result")
    return head


async def verify(archive: Archive, session_id: str) -> list[str]:
    """Check that an archive is complete and read."""
    report = await verify_archive(archive, session_id)
    assert report.entries >= 40
    return report.problems


async def test_after_a_rotation_the_old_key_is_not_needed(tmp_path: Path) -> None:
    """A second time there is nothing to do."""
    await begin(open_archive(tmp_path, "k1"), "old")
    await begin(open_archive(tmp_path, "k2"), "new")
    done = await rekey_archive(open_archive(tmp_path, "k2", "k1"))
    assert (done.failed, done.changed, done.problems) == (0, 0, [])
    assert done.rewritten > 4
    again = await rekey_archive(open_archive(tmp_path, "k2", "k1"))
    assert (again.rewritten, again.current) == (0, done.rewritten + done.current)
    for session_id in ("old", "new"):
        assert await verify(open_archive(tmp_path, "k2"), session_id) == []
    assert not [path for path, data in read_files(tmp_path).items() if b"large result" in data]
    with pytest.raises(UnknownKey, match="'k2'"):
        await verify(open_archive(tmp_path, "k1"), "old")


class CountingArchive(Archive):
    """An archive that counts the blobs that are encrypted anew at the same time."""

    now = most = 0

    async def rekey(self, path: str) -> bool:
        """Count it, if it is a blob."""
        is_blob = "/blobs/" in path
        self.now += is_blob
        self.most = max(self.most, self.now)
        try:
            return await super().rekey(path)
        finally:
            self.now -= is_blob


async def test_blobs_and_chunks_are_encrypted_anew(tmp_path: Path) -> None:
    """A few blobs at a time; each is the same afterwards. One that was altered is named, and the others are done."""
    blobs = Blobs(open_archive(tmp_path, "k1"))
    stored = [await blobs.store("s", make_png(size=3_000 + number)) for number in range(12)]
    await blobs.archive.put_chunk("s", "upload", 0, ("workflow", "run"), b"a chunk of an upload")
    altered = tmp_path / "default/families/s-s/blobs" / stored[0]["digest"]
    data = altered.read_bytes()
    altered.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    rotating = CountingArchive(open_archive(tmp_path, "k2", "k1")._store, "default")
    done = await rekey_archive(rotating)
    assert (done.rewritten, done.failed) == (2 * len(stored), 1)
    assert stored[0]["digest"] in done.problems[0]
    assert 1 <= rotating.most <= BLOBS_AT_ONCE
    new = Blobs(open_archive(tmp_path, "k2"))
    for number, blob in list(enumerate(stored))[1:]:
        assert await new.read("s", blob["digest"]) == make_png(size=3_000 + number)
        assert await new.describe("s", blob["digest"]) == blob
    assert await new.archive.get_chunk("s", "upload", 0) == b"a chunk of an upload"
    # The bytes that were altered are replaced when they are sent again.
    await new.store("s", make_png(size=3_000))
    assert await new.read("s", stored[0]["digest"]) == make_png(size=3_000)


async def test_plain_objects_are_encrypted_in_a_migration_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rotation would otherwise encrypt what a party without the key has put there. The migration is logged."""
    await begin(open_archive(tmp_path), "plain")
    before = read_files(tmp_path)
    refused = await rekey_archive(open_archive(tmp_path, "k1"))
    assert (refused.rewritten, refused.failed) == (0, len([data for data in before.values() if data]))
    assert read_files(tmp_path) == before
    assert not caplog.records
    done = await rekey_archive(open_archive(tmp_path, "k1", accepts_plain=True))
    assert (done.rewritten, done.failed) == (refused.failed, 0)
    assert len([record for record in caplog.records if "is not encrypted" in record.getMessage()]) == refused.failed
    assert await verify(open_archive(tmp_path, "k1"), "plain") == []


async def test_what_cannot_be_decrypted_is_named_and_kept(tmp_path: Path) -> None:
    """The others are encrypted anew all the same."""
    await begin(open_archive(tmp_path, "k3"), "lost")
    await begin(open_archive(tmp_path, "k1"), "old")
    before = read_files(tmp_path / "default/families/s-lost")
    done = await rekey_archive(open_archive(tmp_path, "k2", "k1"))
    assert done.failed == len([data for data in before.values() if data]) + 1
    assert all("'k3'" in problem for problem in done.problems)
    assert before == read_files(tmp_path / "default/families/s-lost")
    assert await verify(open_archive(tmp_path, "k2"), "old") == []


async def test_sessions_write_and_delete_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is a newer head lost, nor does a deleted object come back."""
    used, rotating = open_archive(tmp_path, "k1"), open_archive(tmp_path, "k2", "k1")
    head = await begin(used, "used")
    await begin(used, "deleted")
    seal, written = make_encryption("k2").sealer.seal, set[str]()

    async def interfere(store: Store, path: str, data: bytes) -> bytes:
        # Between the reading of an object and its writing.
        if "sessions/s-used" in path and not written:
            written.add(path)
            await extend_archive(used, head, make_entries(40, 5))
        if "deleted" in path:
            await used.delete("deleted")
        return seal(data, path.partition("/")[2])

    with monkeypatch.context() as patch:
        patch.setattr(rotating._store, "_seal", lambda path, data: interfere(rotating._store, path, data))
        done = await rekey_archive(rotating)
    assert done.failed == 0
    assert done.changed > 0
    assert await used.read_head("deleted") is None
    assert not read_files(tmp_path / "default/families/s-deleted")
    both = open_archive(tmp_path, "k2", "k1")
    assert await verify(both, "used") == []
    newest = await both.read_head("used")
    assert newest
    assert newest.last_seq == 44


async def test_the_command_says_what_it_has_done(tmp_path: Path) -> None:
    """Exit code 1 where an object could not be decrypted, and nothing without keys."""
    await begin(open_archive(tmp_path, "k1"), "s")
    store = {"CLEW_STORE": str(tmp_path)}
    assert "misconfigured: CLEW_ENCRYPTION_KEYS is not set" in (await run_clew("rekey", **store)).err
    failed = await run_clew("rekey", CLEW_ENCRYPTION_KEYS=write_keys("k2"), **store)
    assert failed.code == 1
    assert "'k1', which this process does not have" in failed.out
    done = await run_clew("rekey", "--json", CLEW_ENCRYPTION_KEYS=write_keys("k2", "k1"), **store)
    assert (done.code, done.json["failed"]) == (0, 0)
    assert done.json["rewritten"] > 2
