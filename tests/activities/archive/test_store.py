from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest

from clew_activities.archive import (
    Archive,
    Head,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    Store,
    StoreUnavailable,
    open_store,
)
from clew_activities.archive.archive_errors import KeyMissing
from clew_activities.archive.backends import MAX_OBJECT_BYTES
from clew_workflows.encryption import Encryption
from tests.support.archives import list_objects, make_entries, read_files
from tests.support.encrypted import Reversing, make_encryption
from tests.support.examples import mark_slow_except

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def open_bucket(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, patience: float = 20.0
) -> AsyncIterator[Store]:
    """A bucket at a scripted server."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:pa55word@{host}:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-seen")
        yield Store.from_url("s3://clew/prefix", timeout=patience)


async def assert_every_operation_fails(store: Store) -> list[str]:
    """What each operation says when the store cannot be used."""
    said = []

    async def listing() -> None:
        await anext(store.list("a"))

    for operation in (
        store.put("a/b", b"x"),
        store.put_new("a/b", b"x"),
        store.get("a/b"),
        store.get_part("a/b", 0, 1),
        store.get_size("a/b"),
        store.delete("a/b"),
        listing(),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            await operation
        said.append(str(caught.value))
    return said


@pytest.mark.parametrize("store", mark_slow_except(("folder", "memory"), ("folder", "s3", "memory")), indirect=True)
async def test_what_is_larger_than_any_object_is_not_read(store: Store) -> None:
    """It is damaged, by its size alone; what is as large as allowed is read."""
    await store.put("n/s-ab/x", bytes(MAX_OBJECT_BYTES))
    await store.put("n/s-ab/y", bytes(MAX_OBJECT_BYTES + 1))
    assert len(await store.get("n/s-ab/x")) == MAX_OBJECT_BYTES
    with pytest.raises(ObjectDamaged, match=f"it has {MAX_OBJECT_BYTES + 1} bytes, at most"):
        await store.get("n/s-ab/y")
    with pytest.raises(ObjectDamaged):
        await store.replace("n/s-ab/y", b"z", lambda _present: True)


async def test_what_was_put_is_there(store: Store) -> None:
    """Objects are written, overwritten, read whole or in part, listed below their folder, and deleted."""
    for path in ("n/s-a:b/s-..", "n/s-a/s-.", "n/s-ab/x", "n/s-a/deep/er"):
        await store.put(path, path.encode())
    assert await store.get("n/s-a:b/s-..") == b"n/s-a:b/s-.."
    await store.put("n/s-ab/x", b"0123456789")
    assert await store.get("n/s-ab/x") == b"0123456789"
    assert await store.get_size("n/s-ab/x") == 10
    assert await store.get_part("n/s-ab/x", 3, 4) == (b"3456", 10)
    assert await store.get_part("n/s-ab/x", 8, 40) == (b"89", 10)
    assert await list_objects(store, "n/s-a") == {"n/s-a/s-.", "n/s-a/deep/er"}
    assert await list_objects(store, "nowhere") == set()
    for path in await list_objects(store, "n"):
        await store.delete(path)
    assert await list_objects(store, "n") == set()
    await store.put("empty", b"")
    assert await store.get("empty") == b""


async def test_what_is_not_there_is_missing(store: Store) -> None:
    """Reading an absent object raises an error that names it; deleting it succeeds."""
    await store.put("n/here", b"")
    for reading in (
        store.get("n/absent"),
        store.get_part("n/absent", 0, 1),
        store.get_size("n/absent"),
        store.get("n"),
    ):
        with pytest.raises(ObjectMissing, match=r"^n(/absent)? is missing"):
            await reading
    await store.delete("n/absent")
    await store.delete("no/such/folder")


async def test_put_new_writes_once(store: Store) -> None:
    """An existing object stays unchanged; a shorter one, as a full disk leaves it, is written again."""
    await store.put_new("n/x", b"first")
    await store.put_new("n/x", b"other")
    assert await store.get("n/x") == b"first"
    await store.put("n/y", b"sec")
    await store.put_new("n/y", b"second")
    assert await store.get("n/y") == b"second"


async def test_an_object_is_replaced_if_it_is_what_it_was(store: Store) -> None:
    """`replace` checks the present object first; if the check fails, nothing is written."""
    await store.replace("n/x", b"first", lambda there: there is None)
    await store.replace("n/x", b"second", lambda there: there == b"first")
    with pytest.raises(ObjectChanged, match="n/x"):
        await store.replace("n/x", b"third", lambda there: there is None)
    with pytest.raises(ObjectChanged, match="n/x"):
        await store.replace("n/x", b"third", lambda there: there == b"first")
    assert await store.get("n/x") == b"second"


@pytest.mark.usefixtures("s3_env")
async def test_a_bucket_without_conditions_is_written_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without conditional writes the store compares the object right before it writes."""
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    store = Store.from_url(f"s3://clew/{uuid.uuid4().hex}")
    await store.replace("n/x", b"first", lambda there: there is None)
    await store.replace("n/x", b"second", lambda there: there == b"first")
    with pytest.raises(ObjectChanged):
        await store.replace("n/x", b"third", lambda there: there is None)
    assert await store.get("n/x") == b"second"


async def test_writes_at_the_same_time_leave_one_of_them_whole(local_store: Store) -> None:
    """A reader beside several writers gets the object of one writer, never a mixture."""
    writers = [bytes([i]) * 200_000 for i in range(8)]
    await local_store.put("n/x", writers[0])
    reads = [local_store.get("n/x") for _ in writers]
    _, *seen = await asyncio.gather(asyncio.gather(*(local_store.put("n/x", data) for data in writers)), *reads)
    assert set(seen) <= set(writers)
    assert await local_store.get("n/x") in writers
    assert await list_objects(local_store, "n") == {"n/x"}


async def test_a_local_folder_is_made_and_left_clean(tmp_path: Path) -> None:
    """The folder need not exist; emptied folders go with their last object; only the store's own folder stays."""
    where = tmp_path / "not yet" / "100%"
    for store in (Store.from_url(where.as_uri()), open_store({"CLEW_STORE": str(where)})):
        await store.put("n/sessions/s-x.json", b"{}")
        assert (where / "n" / "sessions" / "s-x.json").read_bytes() == b"{}"
        await store.delete("n/sessions/s-x.json")
        assert [path.name for path in where.rglob("*")] == ["~partial"]


async def test_by_default_the_store_is_among_the_user_s_data(tmp_path: Path) -> None:
    """Nothing need be configured: XDG_DATA_HOME, or ~/.local/share where it is not set."""
    await open_store({"XDG_DATA_HOME": str(tmp_path)}).put("x", b"")
    assert (tmp_path / "clew" / "store" / "x").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        await open_store({}).put("x", b"")
    assert (tmp_path / ".local" / "share" / "clew" / "store" / "x").exists()


@pytest.mark.parametrize(
    "url",
    ["ftp://user:pa55word@host/x", "file://host/x", "file://", "s3://", "http://user:pa55word@host/?key=pa55word"],
)
def test_a_store_that_cannot_be_is_refused_at_once(url: str) -> None:
    """A wrong URL is refused when the worker starts; the message leaves out its password."""
    with pytest.raises(ValueError, match="cannot open the store at") as caught:
        Store.from_url(url)
    assert "pa55word" not in str(caught.value)


async def test_a_folder_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    """An error of the file system raises `StoreUnavailable`: a retry may succeed."""
    store = Store.from_url(tmp_path.as_uri())
    (tmp_path / "n").write_text("a file where a folder should be")
    with pytest.raises(StoreUnavailable, match="n/x"):
        await store.put("n/x", b"")
    with pytest.raises(ValueError, match="cannot open the store at"):
        Store.from_url((tmp_path / "n" / "x").as_uri())


async def test_a_bucket_that_is_not_there_is_no_empty_archive(s3_env: str) -> None:
    """A wrong bucket never looks like a session without an archive."""
    store = Store.from_url("s3://another-bucket/prefix")
    for operation in (store.get("n/x"), store.put("n/x", b""), store.put_new("n/x", b""), anext(store.list("n"))):
        # SeaweedFS refuses a user who has no rights in a bucket before it says that there is none.
        with pytest.raises(StoreUnavailable, match=r"at n.*(NoSuchBucket|403 Forbidden)"):
            await operation


async def test_an_unreachable_store_says_so_at_once(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server, every operation fails at once; the error names the object, and no credential."""
    async with open_bucket(lambda *_: asyncio.sleep(0), monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:pa55word@127.0.0.1:{unused_tcp_port}")
        store = Store.from_url("s3://clew/prefix")
    started = time.monotonic()
    for said in await assert_every_operation_fails(store):
        assert said.startswith("the store cannot be used at a")
        assert "error sending request" in said
        assert not any(secret in said for secret in ("pa55word", "AKIAEXAMPLE", "not-to-be-seen"))
    assert time.monotonic() - started < 20


async def test_a_silent_store_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers delays an operation by the timeout at most."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with open_bucket(silent, monkeypatch, patience=0.2) as store:
        assert len(await assert_every_operation_fails(store)) == 7


@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "503 Slow Down", "403 Forbidden", "401 Unauthorized"]
)
async def test_a_refusing_store_is_asked_once(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request for each operation, since Temporal retries; what the answer tells of the key is not passed on."""
    requests = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        body = (
            b"<?xml version='1.0'?>\n<Error><Code>Refused</Code><AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId></Error>"
        )
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with open_bucket(refuse, monkeypatch) as store:
        said = await assert_every_operation_fails(store)
    assert len(requests) == len(said) == 7
    assert not any(secret in line for line in said for secret in ("pa55word", "AKIAEXAMPLE", "not-to-be-seen"))
    assert "Refused" in said[0]


async def test_a_write_counts_when_the_bucket_shows_it(s3_env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that acknowledges writes and loses them fails each; the next attempts are stored."""
    store, lost = Store.from_url(f"s3://clew/{uuid.uuid4().hex}"), list[str]()

    async def lose(_store: object, path: str, *_args: object, **_options: object) -> None:
        lost.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put_async", lose)
        for write in (store.put("a", b"1"), store.put_new("b", b"2"), store.replace("c", b"3", lambda _: True)):
            with pytest.raises(StoreUnavailable):
                await write
    assert lost == ["a", "b", "c"]
    await store.put("a", b"1")
    await store.replace("a", b"2", lambda present: present == b"1")
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put_async", lose)
        with pytest.raises(StoreUnavailable, match="does not show"):
            await store.replace("a", b"3", lambda _: True)
    assert await store.get("a") == b"2"


async def test_a_write_counts_when_the_bucket_shows_a_later_one(s3_env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may read an object and replace it before its first writer has looked."""
    store, put = Store.from_url(f"s3://clew/{uuid.uuid4().hex}"), obstore.put_async
    await store.put("a", b"1")

    async def go_on(objects: Any, path: str, data: bytes, **options: Any) -> None:
        await put(objects, path, data, **options)
        await put(objects, path, b"3")

    monkeypatch.setattr(obstore, "put_async", go_on)
    await store.replace("a", b"2", lambda present: present == b"1")
    assert await store.get("a") == b"3"


SENTINEL = b"a sentence that nobody else may read"


def open_encrypted(folder: Path, *kids: str) -> Store:
    """Open the store in a folder with these keys."""
    return Store.from_url(folder.as_uri(), sealer=make_encryption(*kids).sealer)


async def test_objects_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Wholly, in parts, and by a conditional write; in the folder nothing of them is readable."""
    store = open_encrypted(tmp_path, "k1")
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
    await open_encrypted(tmp_path, "k1").put("n/a", SENTINEL)
    for kids in ((), ("k2",)):
        store = open_encrypted(tmp_path, *kids)
        with pytest.raises(KeyMissing, match="'k1', which this process does not have"):
            await store.get("n/a")
        with pytest.raises(StoreUnavailable):
            await store.replace("n/a", b"x", lambda _: True)
    assert await open_encrypted(tmp_path, "k2", "k1").get("n/a") == SENTINEL


async def test_a_changed_or_exchanged_object_is_damaged(tmp_path: Path) -> None:
    """An object is bound to its path, but not to its namespace: a store can be copied to another one."""
    store = open_encrypted(tmp_path, "k1")
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
    await open_encrypted(tmp_path).put_new("n/a", SENTINEL)
    with pytest.raises(KeyMissing, match="is not encrypted"):
        await open_encrypted(tmp_path, "k1").get("n/a")
    store = Store.from_url(tmp_path.as_uri(), sealer=make_encryption("k1", accepts_plain=True).sealer)
    assert await store.get("n/a") == SENTINEL
    assert await store.get_part("n/a", 2, 8) == (SENTINEL[2:10], len(SENTINEL))
    await store.put_new("n/a", SENTINEL)
    assert SENTINEL not in (tmp_path / "n/a").read_bytes()


async def test_the_largest_object_can_be_read(tmp_path: Path) -> None:
    """Encryption takes nothing from the sizes that are allowed."""
    store = open_encrypted(tmp_path, "k1")
    await store.put("n/a", b"x" * MAX_OBJECT_BYTES)
    assert len(await store.get("n/a")) == MAX_OBJECT_BYTES


async def test_an_archive_without_its_key_is_kept(tmp_path: Path) -> None:
    """Its head is not taken for a damaged one, which would be overwritten."""
    archive = Archive(open_encrypted(tmp_path, "k1"), "default")
    root, last = await archive.append("s", None, make_entries(0, 30))
    head = Head(session_id="s", family="s", root=root, last_seq=last)
    await archive.set_head(head, None)
    before = read_files(tmp_path)
    keyless = Archive(open_encrypted(tmp_path), "default")
    with pytest.raises(KeyMissing):
        await keyless.set_head(head.model_copy(update={"last_seq": 1}), None)
    with pytest.raises(KeyMissing):
        await keyless.read_head("s")
    assert read_files(tmp_path) == before
    rotated = Archive(open_encrypted(tmp_path, "k2", "k1"), "default")
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
        await open_encrypted(tmp_path, "k1").get("n/a")
