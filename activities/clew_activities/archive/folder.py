"""Objects in a folder of this machine: readable by nobody else, and on the disk when a write returns.

A write goes to a new file, which is synced, takes the object's name in one step, and then its folder is synced.
Folders are made with mode 0700 and files with 0600; a folder that is there already keeps its mode. All disk access
happens in threads.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from clew_activities.archive.errors import ObjectChanged
from clew_activities.archive.objects import Described, check_size

T = TypeVar("T")

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
# Names with a tilde are the store's own: no session id has one.
_OWN = "~"
_PARTIAL = f"{_OWN}partial"
_LOCK = "lock"
# Seconds after which a file that is still being written was left by a process that died.
_ABANDONED = 3600
# Seconds in which the lock of the heads is awaited; it is held for one comparison.
_LOCK_SECONDS = 10.0
_LOCK_PAUSE = 0.002
# Folders that are remembered as being on the disk; all are forgotten when there are this many.
_MOST_KNOWN = 10_000
# How often a write is tried: another process may remove the folder as empty before the object is in it.
_TRIES = 5

_threads = ThreadPoolExecutor(8, "clew-folder")


class Folder:
    """A folder as a store of objects. Failures are `OSError`s, or `ValueError` for a path that no object has."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._swept = False
        # Folders whose names are on the disk up to the root.
        self._known: set[Path] = set()
        for made in _make_folders(root):
            _sync(made.parent)

    async def put(self, path: str, data: bytes) -> None:
        """Write an object, whole or not at all, over what is there."""
        await _in_thread(self._put, path, data)

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size is there. If so, it is on the disk: its writer may have died before that."""
        return await _in_thread(self._holds, path, size)

    async def replace(self, path: str, data: bytes, over: Callable[[bytes | None], bool]) -> None:
        """Write an object if `over` accepts what is there. No other process of this machine writes in between.

        Raises:
            ObjectChanged: `over` refuses what is there.
        """
        await _in_thread(self._put, path, data, over)

    async def get(self, path: str) -> bytes:
        """The whole object."""
        return await _in_thread(self._read, path)

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer where the object ends before."""
        return await _in_thread(self._read, path, start, length)

    async def describe(self, path: str) -> Described:
        """The object's size and age."""
        found = await _in_thread(self._stat, path)
        return Described(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    async def delete(self, path: str) -> None:
        """Remove an object, and the folders that it leaves empty."""
        await _in_thread(self._delete, path)

    async def list(self, prefix: str) -> AsyncIterator[list[str]]:
        """The paths of all objects below a folder, in no order."""
        walk = os.walk(self._file(prefix))

        def step() -> list[str] | None:
            for folder, folders, files in walk:
                folders[:] = [name for name in folders if not name.startswith(_OWN)]
                return [Path(folder, name).relative_to(self._root).as_posix() for name in files]
            return None

        while (paths := await _in_thread(step)) is not None:
            yield paths

    def _put(self, path: str, data: bytes, over: Callable[[bytes | None], bool] | None = None) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._put_once(path, data, over)
                return
            except FileNotFoundError:
                self._swept = False
                if not tries_left:
                    raise

    def _put_once(self, path: str, data: bytes, over: Callable[[bytes | None], bool] | None) -> None:
        target = self._file(path)
        unnamed = self._write_unnamed(data)
        try:
            with self._locked() if over else nullcontext():
                if over and not over(self._read_if_there(path)):
                    raise ObjectChanged(path)
                if _make_folders(target.parent):
                    self._known.discard(target.parent)
                os.replace(unnamed, target)
        finally:
            unnamed.unlink(missing_ok=True)
        self._sync_names(target.parent)

    def _write_unnamed(self, data: bytes) -> Path:
        folder = self._root / _PARTIAL
        if not self._swept:
            _make_folders(folder)
            _remove_abandoned(folder)
            self._swept = True
        file = folder / uuid.uuid4().hex
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb") as writing:
                writing.write(data)
                writing.flush()
                os.fsync(writing.fileno())
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        return file

    def _sync_names(self, folder: Path) -> None:
        """Sync the names in a folder, and its own name and those above it unless they are known to be on the disk.

        Whichever process made the folder may have died before it synced that.
        """
        _sync(folder)
        if folder in self._known:
            return
        for parent in folder.parents:
            if parent.is_relative_to(self._root):
                _sync(parent)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from comparing and writing at the same time."""
        lock = os.open(self._root / _PARTIAL / _LOCK, os.O_RDWR | os.O_CREAT, _FILE_MODE)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_LOCK_PAUSE)
            yield
        finally:
            os.close(lock)

    def _holds(self, path: str, size: int) -> bool:
        file = self._file(path)
        try:
            if self._stat(path).st_size != size:
                return False
            _sync(file)
            self._sync_names(file.parent)
        except FileNotFoundError:
            return False
        return True

    def _read(self, path: str, start: int = 0, length: int = -1) -> bytes:
        found = self._stat(path)
        if length < 0:
            check_size(path, found.st_size)
        with self._file(path).open("rb") as reading:
            reading.seek(start)
            return reading.read(length)

    def _read_if_there(self, path: str) -> bytes | None:
        try:
            return self._read(path)
        except FileNotFoundError:
            return None

    def _stat(self, path: str) -> os.stat_result:
        file = self._file(path)
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(file)
        return found

    def _delete(self, path: str) -> None:
        file = self._file(path)
        file.unlink(missing_ok=True)
        for folder in file.parents:
            if folder == self._root:
                break
            try:
                folder.rmdir()
            except OSError:
                # It holds other objects, or is gone.
                with suppress(FileNotFoundError):
                    _sync(folder)
                    return
            self._known.discard(folder)
        _sync(self._root)

    def _file(self, path: str) -> Path:
        parts = path.split("/")
        if any(part in {"", ".", ".."} or part.startswith(_OWN) or "\0" in part for part in parts):
            raise ValueError(f"no object has the path {path!r}")
        return self._root.joinpath(*parts)


async def _in_thread(work: Callable[..., T], *args: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args))


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; which of them were not there."""
    if folder.is_dir():
        return []
    made = _make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(_FOLDER_MODE)
        return [*made, folder]
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    return made


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove_abandoned(folder: Path) -> None:
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            if file.name != _LOCK and time.time() - file.stat().st_mtime > _ABANDONED:
                file.unlink()
