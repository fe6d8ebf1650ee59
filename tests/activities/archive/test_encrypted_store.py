"""An encrypted store: nothing readable is in it, and an object without its key is unavailable, not damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew_activities.archive import Archive, Head, ObjectDamaged, Store, StoreUnavailable
from clew_activities.archive.backends import MAX_OBJECT_BYTES
from clew_activities.archive.errors import KeyMissing, ObjectChanged
from clew_workflows.encryption import Encryption
from tests.support.archives import make_entries, read_files
from tests.support.encrypted import Reversing, make_encryption

SENTINEL = b"a sentence that nobody else may read"


def open_store(folder: Path, *kids: str) -> Store:
    """Open the store in a folder with these keys."""
    return Store.from_url(folder.as_uri(), sealer=make_encryption(*kids).sealer)


async def test_objects_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Wholly, in parts, and by a conditional write; in the folder nothing of them is readable."""
    store = open_store(tmp_path, "k1")
    await store.put("n/a", SENTINEL)
    await store.put_new("n/b", SENTINEL)
    await store.put("n/empty", b"")
    assert await store.get("n/a") == await store.get("n/b") == SENTINEL
    assert await store.get_part("n/a", 2, 8) == (SENTINEL[2:10], len(SENTINEL))
    assert await store.get_part("n/a", 999) == (b"", len(SENTINEL))
    await store.replace("n/a", SENTINEL * 2, lambda present: present == SENTINEL)
    assert await store.get("n/a") == SENTINEL * 2
    with pytest.raises(ObjectChanged):
        await store.replace("n/a", b"x", lambda present: present == SENTINEL)
    assert not [path for path, data in read_files(tmp_path).items() if b"sentence" in data]


async def test_an_object_without_its_key_is_unavailable(tmp_path: Path) -> None:
    """A worker that lacks the key can retry, and never overwrites the object."""
    await open_store(tmp_path, "k1").put("n/a", SENTINEL)
    for kids in ((), ("k2",)):
        store = open_store(tmp_path, *kids)
        with pytest.raises(KeyMissing, match="'k1', which this process does not have"):
            await store.get("n/a")
        with pytest.raises(StoreUnavailable):
            await store.replace("n/a", b"x", lambda _: True)
    assert await open_store(tmp_path, "k2", "k1").get("n/a") == SENTINEL


async def test_a_changed_or_exchanged_object_is_damaged(tmp_path: Path) -> None:
    """An object is bound to its path, but not to its namespace: a store can be copied to another one."""
    store = open_store(tmp_path, "k1")
    await store.put("n/a", SENTINEL)
    data = (tmp_path / "n/a").read_bytes()
    (tmp_path / "n/b").write_bytes(data)
    (tmp_path / "n/c").write_bytes(data[:-1] + b"x")
    for path in ("n/b", "n/c"):
        with pytest.raises(ObjectDamaged, match="was changed"):
            await store.get(path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a").write_bytes(data)
    assert await store.get("m/a") == SENTINEL


async def test_a_store_that_was_not_encrypted_is_read_in_a_migration_alone(tmp_path: Path) -> None:
    """Writing the same content again encrypts it."""
    await open_store(tmp_path).put_new("n/a", SENTINEL)
    with pytest.raises(KeyMissing, match="is not encrypted"):
        await open_store(tmp_path, "k1").get("n/a")
    store = Store.from_url(tmp_path.as_uri(), sealer=make_encryption("k1", accepts_plain=True).sealer)
    assert await store.get("n/a") == SENTINEL
    assert await store.get_part("n/a", 2, 8) == (SENTINEL[2:10], len(SENTINEL))
    await store.put_new("n/a", SENTINEL)
    assert SENTINEL not in (tmp_path / "n/a").read_bytes()


async def test_the_largest_object_can_be_read(tmp_path: Path) -> None:
    """Encryption takes nothing from the sizes that are allowed."""
    store = open_store(tmp_path, "k1")
    await store.put("n/a", b"x" * MAX_OBJECT_BYTES)
    assert len(await store.get("n/a")) == MAX_OBJECT_BYTES


async def test_an_archive_without_its_key_is_kept(tmp_path: Path) -> None:
    """Its head is not taken for a damaged one, which would be overwritten."""
    archive = Archive(open_store(tmp_path, "k1"), "default")
    root, last = await archive.append("s", None, make_entries(0, 30))
    head = Head(session_id="s", family="s", root=root, last_seq=last)
    await archive.set_head(head, None)
    before = read_files(tmp_path)
    keyless = Archive(open_store(tmp_path), "default")
    with pytest.raises(KeyMissing):
        await keyless.set_head(head.model_copy(update={"last_seq": 1}), None)
    with pytest.raises(KeyMissing):
        await keyless.read_head("s")
    assert read_files(tmp_path) == before
    rotated = Archive(open_store(tmp_path, "k2", "k1"), "default")
    assert await rotated.read_head("s") == head
    assert [entry.seq async for entry in rotated.read("s", root)] == list(range(30))


async def test_a_codec_of_ones_own_encrypts_the_store(tmp_path: Path) -> None:
    """It works on payloads, and need not be quick: it has an event loop of its own."""
    store = Store.from_url(tmp_path.as_uri(), sealer=Encryption(own_codec=Reversing()).sealer)
    await store.put_new("n/a", SENTINEL)
    await store.put_new("n/a", SENTINEL)
    assert await store.get("n/a") == SENTINEL
    await store.replace("n/a", SENTINEL * 2, lambda present: present == SENTINEL)
    assert await store.get_part("n/a", 1, 3) == (SENTINEL[1:4], 2 * len(SENTINEL))
    assert b"sentence" not in (tmp_path / "n/a").read_bytes()
    with pytest.raises(KeyMissing, match="CLEW_ENCRYPTION_CODEC"):
        await open_store(tmp_path, "k1").get("n/a")
