from __future__ import annotations

import asyncio
import itertools
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.archive import (
    Archive,
    ArchiveSettings,
    Head,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    Store,
    StoreUnavailable,
    ThreadMismatch,
)
from clew_workflows.thread.entries import Entry
from tests.support.archives import (
    FOLDER,
    Failing,
    begin_archive,
    extend_archive,
    list_objects,
    make_entries,
    make_entry,
    read_thread,
)
from tests.support.examples import examples


@pytest.fixture
def archive(store: Store) -> Archive:
    return Archive(store, "default")


async def test_a_thread_is_read_as_it_was_archived(archive: Archive) -> None:
    """The entries are equal after any number of appends and segments, in both directions, in full and in part."""
    head = await begin_archive(archive, "root", [])
    assert (head.root, head.last_seq, await read_thread(archive, head)) == (None, -1, [])
    for count in (1, 80, 3, 1):
        head = await extend_archive(archive, head, make_entries(head.last_seq + 1, count))
    head = await extend_archive(archive, head, [make_entry(seq, text="ü" * 300_000) for seq in range(85, 90)])
    assert await archive.read_head("root") == head
    entries = make_entries(0, 85) + [make_entry(seq, text="ü" * 300_000) for seq in range(85, 90)]
    assert await read_thread(archive, head) == entries
    for first, last in ((0, 0), (5, 82), (81, 200), (89, 89), (90, 95), (7, 6)):
        part = entries[first : last + 1]
        assert [one async for one in archive.read("root", head.root, first, last)] == part
        assert [one async for one in archive.read_back("root", head.root, first, last)] == part[::-1]
    assert [check.problem async for check in archive.verify("root", head.root)] == [None] * 10
    assert [check async for check in archive.verify("root", None)] == []


async def test_ids_are_names_of_their_own(archive: Archive, store: Store) -> None:
    """Every legal session id has an archive of its own, and nothing else is taken for one."""
    ids = (".", "..", "a", "a:b", "a.json", "-", "x" * 200)
    heads = [await begin_archive(archive, name, make_entries(0, i + 1)) for i, name in enumerate(ids)]
    for name, head in zip(ids, heads, strict=True):
        assert await archive.read_head(name) == head
    assert [await archive.delete(name) for name in ids] == [1] * len(ids)
    assert not await list_objects(store)
    for bad in ("", "a/b", "../x", "x" * 201, "ä", "a\n"):
        with pytest.raises(ValueError, match="session id"):
            await archive.read_head(bad)
    for bad in ("", ".", "..", "a/b"):
        with pytest.raises(ValueError, match="namespace"):
            Archive(store, bad)


async def test_namespaces_are_apart(store: Store) -> None:
    """The same id in another namespace is another session."""
    await begin_archive(Archive(store, "one"), "root", make_entries(0, 3))
    assert await Archive(store, "two").read_head("root") is None


async def test_only_what_follows_is_appended(archive: Archive) -> None:
    """Entries that leave a gap, overlap, or are out of order are refused, and nothing is written of them."""
    with pytest.raises(ThreadMismatch, match="ends with entry -1"):
        await archive.append("root", None, make_entries(1, 2))
    root, last = await archive.append("root", None, make_entries(0, 3))
    for wrong in (
        make_entries(0, 3),
        make_entries(2, 2),
        make_entries(4, 1),
        [*make_entries(3, 1), *make_entries(5, 1)],
        make_entries(3, 2)[::-1],
    ):
        with pytest.raises(ThreadMismatch, match="ends with entry 2"):
            await archive.append("root", root, wrong)
    assert await archive.append("root", root, []) == (root, last) == (root, 2)
    assert root
    for seq in (-1, 3):
        with pytest.raises(ThreadMismatch, match="ends with entry 2"):
            await archive.truncate("root", root, seq)
    assert await archive.truncate("root", root, 2) == root


async def test_states_and_results_are_kept_by_their_content(archive: Archive, store: Store) -> None:
    """A state is read back whole; a result in parts, with its size."""
    state = await archive.write_state("root", b'{"a":1}')
    assert await archive.read_state("root", state) == b'{"a":1}'
    digest = await archive.put_result("root", b"0123456789")
    assert await archive.put_result("root", b"0123456789") == digest
    for offset, length, part in (
        (0, None, b"0123456789"),
        (3, 4, b"3456"),
        (8, 40, b"89"),
        (10, 1, b""),
        (99, None, b""),
    ):
        assert await archive.get_result("root", digest, offset, length) == (part, 10)
    assert await archive.get_result("root", await archive.put_result("root", b"")) == (b"", 0)
    for name in ("0" * 64, "../../../secret", digest.upper()):
        with pytest.raises(ObjectMissing, match="results"):
            await archive.get_result("root", name)
    await store.put(f"{FOLDER}/results/{digest}", b"0123456780")
    with pytest.raises(ObjectDamaged, match=f"results/{digest}"):
        await archive.get_result("root", digest)
    await store.put(f"{FOLDER}/states/{state}.json", b"{}")
    with pytest.raises(ObjectDamaged, match=f"states/{state}.json"):
        await archive.read_state("root", state)


async def test_a_head_replaces_the_one_before_it_and_its_state(archive: Archive, store: Store) -> None:
    """Of a session's states the newest stays; heads of newer versions may bring fields."""
    head = await begin_archive(archive, "root", make_entries(0, 1))
    for _ in range(3):
        head = await extend_archive(archive, head, make_entries(head.last_seq + 1, 1))
    assert head.state
    assert await list_objects(store, f"{FOLDER}/states") == {f"{FOLDER}/states/{head.state}.json"}
    assert await list_objects(store, f"{FOLDER}/members") == {f"{FOLDER}/members/s-root"}
    await archive.set_head(head.model_copy(update={"status": "closed"}), head)
    assert await archive.read_state("root", head.state)


async def test_a_state_that_was_replaced_meanwhile_is_not_missing(archive: Archive, store: Store) -> None:
    """The newer head's state is checked instead; it is missing if the newest head names it, and none after that."""
    old = await begin_archive(archive, "root", make_entries(0, 1))
    head = await extend_archive(archive, old, make_entries(1, 1))
    path = f"{FOLDER}/states/{head.state}.json"
    assert old.state
    assert await list_objects(store, f"{FOLDER}/states") == {path}
    await archive.verify_state(old)
    await archive.verify_state(head)
    await store.put(path, b"{}")
    with pytest.raises(ObjectDamaged, match=path):
        await archive.verify_state(old)
    await store.delete(path)
    for named in (old, head):
        with pytest.raises(ObjectMissing, match=path):
            await archive.verify_state(named)
    await archive.delete("root")
    await archive.verify_state(old)


async def test_of_two_who_write_a_head_one_is_told(archive: Archive) -> None:
    """A writer with an outdated head, or a second start, is refused and changes nothing."""
    first = await begin_archive(archive, "root", make_entries(0, 1))
    second = await extend_archive(archive, first, make_entries(1, 1))
    for before in (first, None):
        with pytest.raises(ObjectChanged, match="root"):
            await archive.set_head(first.model_copy(update={"status": "closed"}), before)
    assert await archive.read_head("root") == second


async def test_of_many_who_write_a_head_at_once_one_does() -> None:
    """In a store with conditional writes, one of several concurrent writers sets the head; the others are refused."""
    archive = Archive(Store.from_url("memory://"), "default")
    first = await begin_archive(archive, "root", make_entries(0, 1))
    heads = [first.model_copy(update={"run_id": f"r-{n}"}) for n in range(6)]
    outcomes = await asyncio.gather(*(archive.set_head(head, first) for head in heads), return_exceptions=True)
    assert sum(isinstance(error, ObjectChanged) for error in outcomes) == len(heads) - 1
    assert await archive.read_head("root") == heads[outcomes.index(None)]


async def test_a_damaged_head_gives_way(archive: Archive, store: Store) -> None:
    """A damaged head is overwritten, because no session can use it."""
    head = await begin_archive(archive, "root", make_entries(0, 1))
    await store.put("default/sessions/s-root.json", b"garbage")
    await archive.set_head(head, None)
    assert await archive.read_head("root") == head


async def test_reading_touches_what_it_needs() -> None:
    """Of a long thread a part costs one root, few nodes and its segments; kinds that are not there cost nothing."""
    store = Failing(Store.from_url("memory://"))
    archive = Archive(store, "default", ArchiveSettings(fanout=16))
    root: str | None = None
    for seq in range(250):
        root, _ = await archive.append("root", root, [make_entry(seq, "run" if seq == 125 else "ai_message")])

    async def cost(first: int, last: int, kinds: frozenset[str] | None = None) -> tuple[list[int], int, int]:
        store.operations.clear()
        seqs = [one.seq async for one in archive.read("root", root, first, last, kinds=kinds)]
        paths = [path for _, path in store.operations]
        return seqs, sum("/nodes/" in path for path in paths), sum("/segments/" in path for path in paths)

    assert await cost(125, 127) == ([125, 126, 127], 2, 3)
    assert await cost(0, 249, frozenset({"run"})) == ([125], 2, 1)
    assert await cost(0, 249, frozenset({"summary"})) == ([], 1, 0)
    store.operations.clear()
    assert [one.seq async for one in archive.read_back("root", root, kinds=frozenset({"run", "error"}))] == [125]
    async for one in archive.read_back("root", root):
        assert one.seq == 249
        break
    assert len(store.operations) <= 5


async def test_kinds_within_a_segment_are_told_apart() -> None:
    """A read of some kinds yields no entry of another kind."""
    archive = Archive(Store.from_url("memory://"), "default")
    entries = [make_entry(0, "config"), make_entry(1), make_entry(2, "run"), make_entry(3)]
    root, _ = await archive.append("root", None, entries)
    wanted = frozenset({"config", "run"})
    assert [one async for one in archive.read("root", root, kinds=wanted)] == [entries[0], entries[2]]
    assert [one async for one in archive.read_back("root", root, 1, kinds=wanted)] == [entries[2]]


async def test_memory_stays_flat_while_a_long_thread_is_read(tmp_path: Path) -> None:
    """Forty megabytes are read with a few in memory."""
    archive = Archive(Store.from_url(tmp_path.as_uri()), "default")
    root: str | None = None
    for start in range(0, 400, 50):
        root, _ = await archive.append(
            "root", root, [make_entry(seq, text="x" * 100_000) for seq in range(start, start + 50)]
        )
    tracemalloc.start()
    try:
        assert [one.seq async for one in archive.read("root", root)] == list(range(400))
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


async def make_small_archive() -> tuple[Store, Head]:
    """An archive with two levels of nodes, in memory."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default", ArchiveSettings(fanout=2))
    head = Head(session_id="root", family="root")
    for _ in range(3):
        head = await extend_archive(archive, head, make_entries(head.last_seq + 1, 2))
    return store, head


@pytest.mark.parametrize("step", [pytest.param(4, marks=pytest.mark.slow), 31])
async def test_damage_of_any_byte_is_found_and_named(step: int) -> None:
    """If a byte of an object that a session needs changes, reading and verifying both name the object."""
    store, head = await make_small_archive()
    archive = Archive(store, "default")
    needed = {check.name async for check in archive.verify("root", head.root)}
    assert len(needed) == 3 + 1 + 1
    head_path = "default/sessions/s-root.json"

    async def resume() -> None:
        current = await archive.read_head("root")
        assert current
        assert current.state
        await archive.read_state("root", current.state)
        await read_thread(archive, current)

    for path in {*needed, head_path, f"{FOLDER}/states/{head.state}.json"}:
        data = await store.get(path)
        for i in range(len(data) % step, len(data), step):
            await store.put(path, data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
            with pytest.raises(ObjectDamaged, match=path):
                await resume()
        if path in needed:
            problems = [check async for check in archive.verify("root", head.root) if check.problem]
            assert [(one.name, path in (one.problem or "")) for one in problems] == [(path, True)]
        await store.put(path, data)
    assert not [check async for check in archive.verify("root", head.root) if check.problem]


async def test_a_missing_object_is_named_and_never_skipped() -> None:
    """Without one of its objects a thread is not read past the gap, in either direction, and verifying goes on."""
    store, head = await make_small_archive()
    archive = Archive(store, "default")
    for check in [check async for check in archive.verify("root", head.root)]:
        data = await store.get(check.name)
        await store.delete(check.name)
        with pytest.raises(ObjectMissing, match=check.name):
            await read_thread(archive, head)
        with pytest.raises(ObjectMissing, match=check.name):
            assert [one async for one in archive.read_back("root", head.root)]
        problems = [result async for result in archive.verify("root", head.root) if result.problem]
        assert [(one.name, one.problem) for one in problems] == [
            (check.name, f"{check.name} is missing from the store")
        ]
        await store.put(check.name, data)


async def test_a_head_that_is_another_s_is_not_taken() -> None:
    """A file system that takes upper and lower case for the same never gives a session a stranger's thread."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    await begin_archive(archive, "Root", make_entries(0, 1))
    await store.put("default/sessions/s-root.json", await store.get("default/sessions/s-Root.json"))
    with pytest.raises(ObjectDamaged, match="it is the head of 'Root'"):
        await archive.read_head("root")
    for nonsense in (b"", b"[]", b"{}", b"\xff", json.dumps({"digest": 1}).encode()):
        await store.put("default/sessions/s-root.json", nonsense)
        with pytest.raises(ObjectDamaged, match=r"sessions/s-root\.json"):
            await archive.read_head("root")


@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_an_append_is_repeated_after_a_crash_anywhere(lost: bool) -> None:
    """Whichever operation fails, or whose answer is lost: doing it all again gives the same objects and head."""
    small = ArchiveSettings(fanout=3, segment_bytes=500)

    async def before() -> tuple[Store, Head]:
        store = Store.from_url("memory://")
        return store, await begin_archive(Archive(store, "default", small), "root", make_entries(0, 7))

    store, head = await before()
    expected = await extend_archive(Archive(store, "default", small), head, make_entries(7, 15))
    contents = {path: await store.get(path) for path in await list_objects(store)}
    crashes = 0
    for n in itertools.count():
        store, head = await before()
        failing = Failing(store, n, lost=lost)
        try:
            done = await extend_archive(Archive(failing, "default", small), head, make_entries(7, 15))
        except StoreUnavailable:
            crashes += 1
            archive = Archive(store, "default", small)
            known = await archive.read_head("root")
            assert known
            assert await read_thread(archive, known) == make_entries(0, known.last_seq + 1)
            assert await extend_archive(archive, head, make_entries(7, 15)) == expected
            leftover = {f"{FOLDER}/states/{head.state}.json"}
            assert {path: await store.get(path) for path in await list_objects(store) - leftover} == contents
        else:
            assert done == expected
            if failing.exhausted:
                break
    assert crashes > 15


@examples(50)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(-5, 200),
    st.integers(-5, 200),
    st.integers(2, 4),
)
async def test_reading_is_slicing(lengths: list[int], first: int, last: int, fanout: int) -> None:
    """However a thread was appended, any part of it reads like the slice of a list."""
    archive = Archive(Store.from_url("memory://"), "default", ArchiveSettings(fanout=fanout))
    entries: list[Entry] = []
    root: str | None = None
    for length in lengths:
        new = make_entries(len(entries), length)
        root, last_seq = await archive.append("root", root, new)
        entries += new
        assert last_seq == entries[-1].seq
    part = [one for one in entries if first <= one.seq <= last]
    assert [one async for one in archive.read("root", root, first, last)] == part
    assert [one async for one in archive.read_back("root", root, first, last)] == part[::-1]
