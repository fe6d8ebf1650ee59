"""The store in a folder: for its owner alone, and on the disk when a write returns."""

from __future__ import annotations

import asyncio
import operator
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from clew_activities.archive import Archive, Head, ObjectChanged, ObjectMissing, Store, StoreUnavailable
from clew_activities.archive.backends import Folder
from tests.support.archives import begin_archive, extend_archive, fork_archive, make_entries, read_thread


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Folder(tmp_path / "store"))


@pytest.fixture
def archive(store: Store) -> Archive:
    return Archive(store, "default")


@dataclass
class Disk:
    """What a power cut would leave of a folder: only what was synced, file by file and folder by folder.

    It watches `os.fsync`, `os.replace`, `os.mkdir` and `os.unlink` below one root, and calls `after` at each.
    """

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    steps: list[tuple[str, str]] = field(default_factory=list)
    # Kept open, so that no inode is used again.
    opened: list[int] = field(default_factory=list)
    after: Callable[[], None] = lambda: None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("fsync", "replace", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object, **options: object) -> object:
            answer = real(*args, **options)
            last = args[1] if name == "replace" else args[0]
            path = Path(os.readlink(f"/proc/self/fd/{last}")) if name == "fsync" else Path(str(last))
            if path == self.root or path.is_relative_to(self.root):
                if name == "fsync":
                    self.opened.append(os.dup(int(str(last))))
                    self._synced(path)
                self.steps.append((name, path.relative_to(self.root).as_posix()))
                self.after()
            return answer

        return watched

    def _synced(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_dir():
            self.names[inode] = {child.name: child.stat().st_ino for child in path.iterdir()}
        else:
            self.contents[inode] = path.read_bytes()

    def close(self) -> None:
        while self.opened:
            os.close(self.opened.pop())

    def restore(self, target: Path) -> None:
        """Write what a power cut would leave to another folder."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        self._restore(self.root.stat().st_ino, target)

    def _restore(self, inode: int, target: Path) -> None:
        for name, child in self.names.get(inode, {}).items():
            if child in self.contents:
                (target / name).write_bytes(self.contents[child])
            else:
                # A folder, or a file of which nothing was synced; both have no content.
                (target / name).mkdir()
                self._restore(child, target / name)


def list_modes(below: Path) -> dict[str, set[int]]:
    """The modes of all folders and of all files below one."""
    modes: dict[str, set[int]] = {"folder": set(), "file": set()}
    for path in below.rglob("*"):
        modes["folder" if path.is_dir() else "file"].add(path.stat().st_mode & 0o777)
    return modes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_nobody_else_can_read_what_is_stored(umask: int, tmp_path: Path) -> None:
    """Every folder that the store makes is 0700 and every file 0600, whatever the process's umask is."""
    before = os.umask(umask)
    try:
        archive = Archive(Store.from_url((tmp_path / "not yet" / "store").as_uri()), "default")
        head = await extend_archive(
            archive, await begin_archive(archive, "s", make_entries(0, 3)), make_entries(3, 3)
        )
        await archive.put_result("s", b"large")
        await fork_archive(archive, "s", "branch", 1)
    finally:
        os.umask(before)
    assert await read_thread(archive, head) == make_entries(0, 6)
    assert list_modes(tmp_path) == {"folder": {0o700}, "file": {0o600}}


async def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """The archive does not change the mode of an existing folder, such as `/srv` or a volume that a group shares."""
    os.chmod(tmp_path, 0o755)
    await Store(Folder(tmp_path)).put("n/x", b"")
    assert os.stat(tmp_path).st_mode & 0o777 == 0o755
    assert list_modes(tmp_path) == {"folder": {0o700}, "file": {0o600}}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    watched = Disk(tmp_path / "store")
    yield watched
    watched.close()


async def test_a_head_is_never_ahead_of_what_it_names(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut at any moment what a head names reads whole, and no acknowledged write is lost."""
    archive = Archive(Store(Folder(disk.root)), "default")
    states: list[Path] = []

    def power_cut() -> None:
        left = tmp_path / f"after {len(states)}"
        disk.restore(left)
        states.append(left)

    disk.after = power_cut
    disk.watch(monkeypatch)
    acknowledged: list[tuple[int, Head]] = []
    head = await begin_archive(archive, "s", make_entries(0, 3))
    acknowledged.append((len(states), head))
    for seq in (3, 5):
        head = await extend_archive(archive, head, make_entries(seq, 2))
        acknowledged.append((len(states), head))
    await fork_archive(archive, "s", "branch", 4)
    monkeypatch.undo()
    assert len(states) > 30
    for number, left in enumerate(states):
        after = Archive(Store(Folder(left)), "default")
        heads = [one for name in ("s", "branch") if (one := await after.read_head(name))]
        for head in heads:
            assert await read_thread(after, head) == make_entries(0, head.last_seq + 1)
            if head.state:
                await after.read_state(head.family, head.state)
        promised = [last.last_seq for at, last in acknowledged if at <= number]
        if promised:
            assert heads[0].last_seq >= promised[-1]


async def test_each_file_is_synced_before_it_has_its_name_and_its_folder_after(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write syncs the file, names it, then syncs the folder: the power cuts above rely on this order."""
    store = Store(Folder(disk.root))
    await store.put("n/a", b"")
    disk.watch(monkeypatch)
    await store.put("n/x", b"data")
    (written, unnamed), *rest = disk.steps
    assert (written, unnamed.partition("/")[0]) == ("fsync", "~partial")
    assert rest == [("replace", "n/x"), ("fsync", "n")]


async def test_what_another_writer_left_unsynced_is_synced_before_it_is_relied_on(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may die after it has given an object its name: the next one finds it, and makes it durable."""
    (disk.root / "n" / "deep").mkdir(parents=True)
    (disk.root / "n" / "deep" / "x").write_bytes(b"data")
    disk.watch(monkeypatch)
    await Store(Folder(disk.root)).put_new("n/deep/x", b"data")
    left = tmp_path / "after"
    disk.restore(left)
    assert (left / "n" / "deep" / "x").read_bytes() == b"data"


async def test_a_folder_that_was_made_anew_is_synced_anew(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may remove a folder as empty, and it, or this one, may make it again."""
    store = Store(Folder(disk.root))
    await store.put("n/deep/x", b"before")
    shutil.rmtree(disk.root / "n")
    disk.watch(monkeypatch)
    await store.put("n/deep/x", b"after")
    left = tmp_path / "after"
    disk.restore(left)
    assert (left / "n" / "deep" / "x").read_bytes() == b"after"


async def test_a_crash_between_the_data_and_the_head_leaves_the_archive_as_it_was(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No head names the new objects, and the archive can write them again."""
    head = await begin_archive(archive, "s", make_entries(0, 3))
    real = os.replace

    def crash(source: object, target: object) -> None:
        if "/sessions/" in str(target):
            raise OSError("the power is gone")
        real(str(source), str(target))

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(StoreUnavailable, match="power"):
        await extend_archive(archive, head, make_entries(3, 2))
    monkeypatch.undo()
    assert await archive.read_head("s") == head
    assert await read_thread(archive, head) == make_entries(0, 3)
    longer = await extend_archive(archive, head, make_entries(3, 2))
    assert await read_thread(archive, longer) == make_entries(0, 5)


WRITER = """
import asyncio, sys
from pathlib import Path
from clew_activities.archive import ObjectChanged, Store
from clew_activities.archive.backends import Folder

async def main(root, rounds):
    store, won = Store(Folder(Path(root))), 0
    while won < rounds:
        count = int(await store.get("n/head"))
        try:
            await store.replace("n/head", str(count + 1).encode(), lambda there: there == str(count).encode())
            won += 1
        except ObjectChanged:
            pass

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.slow
async def test_of_two_writers_of_one_head_one_is_refused(tmp_path: Path) -> None:
    """In one process or in several: each replacement builds on the one before it, so none is lost."""
    rounds = 15
    store = Store(Folder(tmp_path))
    await store.put("n/head", b"0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, str(tmp_path), f"{rounds}"]
    others = [await asyncio.create_subprocess_exec(*command, env=environment) for _ in range(2)]
    won = 0

    async def count_up() -> None:
        nonlocal won
        for _ in range(rounds):
            there = await store.get("n/head")
            try:
                await store.replace("n/head", str(int(there) + 1).encode(), partial(operator.eq, there))
                won += 1
            except ObjectChanged:
                pass

    await asyncio.gather(count_up(), count_up())
    assert [await other.wait() for other in others] == [0, 0]
    assert int(await store.get("n/head")) == won + 2 * rounds


async def test_a_folder_that_is_removed_as_empty_is_made_again(store: Store) -> None:
    """One session's last object goes while another session's first one comes."""

    async def come_and_go(name: str) -> None:
        for _ in range(50):
            await store.put(f"n/{name}", b"x")
            await store.delete(f"n/{name}")

    await asyncio.gather(*(come_and_go(name) for name in "abcd"))
    await store.put("n/last", b"x")
    assert [path async for path in store.list("n")] == ["n/last"]


async def test_a_folder_that_goes_while_it_is_looked_at_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has made it, and removes it after the first look: the write makes it again."""
    folder, looks, make = tmp_path / "n", 0, Path.mkdir
    store = Store(Folder(tmp_path))
    await store.put("first", b"x")

    def mkdir(path: Path, mode: int = 0o777) -> None:
        make(path, mode)
        if path == folder and not looks:
            raise FileExistsError(path)

    def look(path: Path, **options: bool) -> os.stat_result:
        nonlocal looks
        found = os.stat(path, **options)
        if path == folder and not looks:
            looks += 1
            folder.rmdir()
        return found

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "stat", look)
    await store.put("n/x", b"x")
    assert looks
    assert await store.get("n/x") == b"x"


async def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    """Its unnamed file may hold a conversation that was deleted meanwhile; one that is being written stays."""
    unnamed = tmp_path / "~partial"
    unnamed.mkdir()
    (unnamed / "old").write_bytes(b"a secret")
    (unnamed / "new").write_bytes(b"being written")
    long_ago = time.time() - 7200
    os.utime(unnamed / "old", (long_ago, long_ago))
    await Store(Folder(tmp_path)).put("n/x", b"")
    assert [path.name for path in unnamed.iterdir()] == ["new"]


@pytest.mark.parametrize("path", ["../x", "n/../../x", "n//x", "/etc/passwd", "~partial/x", "n/.", "n/\0"])
async def test_a_path_never_leads_out_of_the_folder(path: str, store: Store, tmp_path: Path) -> None:
    """A path that leads out of the folder is refused, as are the store's own names."""
    with pytest.raises(StoreUnavailable):
        await store.put(path, b"x")
    with pytest.raises(StoreUnavailable):
        await store.get(path)
    assert list_modes(tmp_path)["file"] == set()


async def test_a_full_disk_leaves_what_was_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the object nor half a file stays behind."""
    await store.put("n/x", b"before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        await store.put("n/x", b"after")
    monkeypatch.undo()
    assert await store.get("n/x") == b"before"
    assert [path async for path in store.list("n")] == ["n/x"]


async def test_a_slow_disk_keeps_nobody_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop goes on while a write waits for its sync."""
    may_sync = threading.Event()
    real = os.fsync

    def slow(descriptor: int) -> None:
        assert may_sync.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    writing = asyncio.create_task(store.put("n/x", b"data"))
    with pytest.raises(ObjectMissing):
        await store.get("n/x")
    assert not writing.done()
    may_sync.set()
    await writing
    assert await store.get("n/x") == b"data"
