"""The backends of a store: the interface, objects in a bucket or in memory, objects in a folder of this machine.

Errors are those of the libraries: `OSError`, obstore's, or `ValueError` for a path that is not valid.

A folder's objects are readable by its user alone, and on the disk when a write returns. A write creates a new file,
syncs it, renames it to the object's name, and syncs its folder. Folders are created with mode 0700 and files with
0600; an existing folder keeps its mode. All access to the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import fcntl
import heapq
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from clew_activities.archive.archive_errors import ObjectChanged, ObjectDamaged
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from clew_workflows.encryption import MAX_OVERHEAD_BYTES

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

T = TypeVar("T")

MAX_OBJECT_BYTES = MAX_BLOB_BYTES
"""Largest object that is read in one piece, in bytes: a blob. Large tool results have at most 16 MiB, other objects
about a tenth of that."""
_NOT_SHOWN = "the store has acknowledged a write that it does not show"


def check_size(path: str, size: int, overhead: int = 0) -> None:
    """Refuse to read an object that is larger than any that Clew writes. Encryption may have added `overhead`.

    Raises:
        ObjectDamaged: It has more than `MAX_OBJECT_BYTES`.
    """
    if size > MAX_OBJECT_BYTES + overhead:
        raise ObjectDamaged(path, f"it has {size} bytes, at most {MAX_OBJECT_BYTES} are written")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's metadata.

    Attributes:
        size: Size in bytes.
        modified: When it was written.
    """

    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A URL to which the bytes of one object can be sent without other credentials.

    Attributes:
        url: The URL.
        headers: The headers that the request must have.
    """

    url: str
    headers: dict[str, str]


class Objects(Protocol):
    """Objects under slash-separated paths.

    A write is durable when it returns. Reading an absent object raises FileNotFoundError. Every other failure is an
    OSError: what asked for the object tries again.
    """

    async def put(self, path: str, data: bytes) -> None:
        """Write an object atomically, replacing an existing one."""
        ...

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size exists, durably."""
        ...

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        """Write an object if `accepts` returns True for the existing object's bytes, or for None if it is absent.

        Raises:
            ObjectChanged: `accepts` returned False, or another writer wrote the object in between.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read an object.

        Raises:
            ObjectDamaged: It has more than `MAX_OBJECT_BYTES`.
        """
        ...

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`, which must be within the object."""
        ...

    async def describe(self, path: str) -> ObjectInfo:
        """Read an object's size and age."""
        ...

    async def delete(self, path: str) -> None:
        """Delete an object. For an absent one it returns or raises FileNotFoundError."""
        ...

    def list(self, prefix: str) -> AsyncIterator[list[str]]:
        """List the paths of all objects in a folder and below, in batches and in no order."""
        ...

    async def list_after(self, prefix: str, after: str | None, limit: int) -> Sequence[str]:
        """List the first paths of objects in a folder, in order, after a path. The folder has no others in it."""
        ...

    async def sign_put(self, path: str, expires_in: timedelta) -> SignedPut | None:
        """Sign a URL for a write of an object; None: this backend has no URLs that can be handed on."""
        ...


class Bucket:
    """Objects in a bucket, or in memory.

    A write counts when the store has shown it: a store that loses a write which it has acknowledged costs a retry.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, path: str, data: bytes) -> None:
        """Write an object atomically, replacing an existing one.

        Raises:
            OSError: The store does not show the object after the write.
        """
        await obstore.put_async(self._objects, path, data, use_multipart=False)
        if not await self.holds(path, len(data)):
            raise OSError(_NOT_SHOWN)

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size exists."""
        try:
            return (await self.describe(path)).size == size
        except FileNotFoundError:
            return False

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        """Write an object if `accepts` returns True for the existing one.

        In a bucket without conditional writes, a write by another writer in between is lost.

        Raises:
            OSError: The store does not show the object after the write.
        """
        present: bytes | None = None
        mode: PutMode = "create"
        with suppress(FileNotFoundError):
            result = await obstore.get_async(self._objects, path)
            check_size(path, result.meta["size"], MAX_OVERHEAD_BYTES)
            present = bytes(await result.bytes_async())
            # The library returns None for an absent key, and does not accept it as input.
            known = {key: value for key in ("e_tag", "version") if (value := result.meta[key])}
            mode = cast("UpdateVersion", known)
        if not accepts(present):
            raise ObjectChanged(path)
        try:
            await obstore.put_async(self._objects, path, data, mode=mode, use_multipart=False)
        except NotImplementedError:
            await obstore.put_async(self._objects, path, data, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            raise ObjectChanged(path) from None
        shown: bytes | None = None
        with suppress(FileNotFoundError):
            shown = await self.get(path)
        # Another writer has read this write and replaced it, if the store shows anything else.
        if shown != data and shown in (None, present):
            raise OSError(_NOT_SHOWN)

    async def get(self, path: str) -> bytes:
        """Read an object."""
        result = await obstore.get_async(self._objects, path)
        check_size(path, result.meta["size"], MAX_OVERHEAD_BYTES)
        return bytes(await result.bytes_async())

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        return bytes(await obstore.get_range_async(self._objects, path, start=start, length=length))

    async def describe(self, path: str) -> ObjectInfo:
        """Read an object's size and age."""
        result = await obstore.head_async(self._objects, path)
        return ObjectInfo(result["size"], result["last_modified"])

    async def delete(self, path: str) -> None:
        """Delete an object."""
        await obstore.delete_async(self._objects, path)

    async def list(self, prefix: str) -> AsyncIterator[list[str]]:
        """List the paths of all objects in a folder and below, in batches."""
        async for chunk in obstore.list(self._objects, prefix):
            yield [result["path"] for result in chunk]

    async def list_after(self, prefix: str, after: str | None, limit: int) -> Sequence[str]:
        """List the first paths of objects in a folder, in order, after a path."""
        first: list[str] = []
        async for chunk in obstore.list(self._objects, prefix, offset=after, chunk_size=limit):
            first += [result["path"] for result in chunk if after is None or result["path"] > after]
            # Buckets are listed in order. From one that is not, everything must be read.
            if len(first) >= limit and first == sorted(first):
                break
            first = heapq.nsmallest(limit, first)
        return heapq.nsmallest(limit, first)

    async def sign_put(self, path: str, expires_in: timedelta) -> SignedPut | None:
        """Sign a URL for a write of an object; None: it is memory, or its address has a password."""
        match self._objects:
            case AzureStore():
                headers = {"x-ms-blob-type": "BlockBlob"}
            case S3Store() | GCSStore():
                headers = {}
            case _:
                return None
        url = await obstore.sign_async(self._objects, "PUT", path, expires_in)
        # The user and the password of an endpoint's address would be handed on with the URL.
        return None if urlsplit(url).username is not None else SignedPut(url, headers)


_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
# Prefix of the store's own files: no session id contains a tilde.
_OWN = "~"
_PARTIAL = f"{_OWN}partial"
_LOCK = "lock"
# Age in seconds from which an unfinished file was left by a process that died.
_ABANDONED_SECONDS = 3600
# Longest wait for the lock of the heads, in seconds. It is held for one comparison.
_LOCK_SECONDS = 10.0
_LOCK_PAUSE_SECONDS = 0.002
# Number of folders that are remembered as synced; at this number all are forgotten.
_MAX_KNOWN_FOLDERS = 10_000
# Attempts of a write: another process may remove the empty folder before the object is in it.
_MAX_TRIES = 5

_threads = ThreadPoolExecutor(8, "clew-folder")


class Folder:
    """Objects in a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._swept = False
        # Folders whose names are synced, up to the root.
        self._known: set[Path] = set()
        for folders in _make_folders(root):
            _sync(folders.parent)

    async def put(self, path: str, data: bytes) -> None:
        """Write an object atomically, replacing an existing one."""
        await _run_in_thread(self._put, path, data)

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size exists. If it does, sync it: its writer may have died before that."""
        return await _run_in_thread(self._holds, path, size)

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        """Write an object if `accepts` returns True for the existing one. A lock keeps other processes out.

        Raises:
            ObjectChanged: `accepts` returned False.
        """
        await _run_in_thread(self._put, path, data, accepts)

    async def get(self, path: str) -> bytes:
        """Read an object."""
        return await _run_in_thread(self._read, path)

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        return await _run_in_thread(self._read, path, start, length)

    async def describe(self, path: str) -> ObjectInfo:
        """Read an object's size and age."""
        status = await _run_in_thread(self._stat, path)
        return ObjectInfo(status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    async def delete(self, path: str) -> None:
        """Delete an object, and the folders that become empty."""
        await _run_in_thread(self._delete, path)

    async def list(self, prefix: str) -> AsyncIterator[list[str]]:
        """List the paths of all objects in a folder and below, in no order."""
        walk = os.walk(self._find_path(prefix))

        def step() -> list[str] | None:
            for folder, folders, files in walk:
                folders[:] = [name for name in folders if not name.startswith(_OWN)]
                return [Path(folder, name).relative_to(self._root).as_posix() for name in files]
            return None

        while (paths := await _run_in_thread(step)) is not None:
            yield paths

    async def list_after(self, prefix: str, after: str | None, limit: int) -> Sequence[str]:
        """List the first paths of objects in a folder, in order, after a path."""
        return await _run_in_thread(self._list_after, prefix, after, limit)

    async def sign_put(self, path: str, expires_in: timedelta) -> SignedPut | None:  # noqa: ARG002 - there are none
        """A folder has no URLs: returns None."""
        return None

    def _list_after(self, prefix: str, after: str | None, limit: int) -> Sequence[str]:
        try:
            with os.scandir(self._find_path(prefix)) as entries:
                paths = (f"{prefix}/{entry.name}" for entry in entries if not entry.name.startswith(_OWN))
                return heapq.nsmallest(limit, (path for path in paths if after is None or path > after))
        except FileNotFoundError:
            return []

    def _put(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool] | None = None) -> None:
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                self._put_once(path, data, accepts)
                return
            except FileNotFoundError:
                self._swept = False
                if not tries_left:
                    raise

    def _put_once(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool] | None) -> None:
        target = self._find_path(path)
        unnamed = self._write_unnamed(data)
        try:
            with self._lock() if accepts else nullcontext():
                if accepts and not accepts(self._read_or_none(path)):
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
        """Sync the names in a folder, and its own name and its parents' unless they are known to be synced.

        The process that made the folder may have died before it synced them.
        """
        _sync(folder)
        if folder in self._known:
            return
        for parent in folder.parents:
            if parent.is_relative_to(self._root):
                _sync(parent)
        if len(self._known) >= _MAX_KNOWN_FOLDERS:
            self._known.clear()
        self._known.add(folder)

    @contextmanager
    def _lock(self) -> Iterator[None]:
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
                    time.sleep(_LOCK_PAUSE_SECONDS)
            yield
        finally:
            os.close(lock)

    def _holds(self, path: str, size: int) -> bool:
        file = self._find_path(path)
        try:
            if self._stat(path).st_size != size:
                return False
            _sync(file)
            self._sync_names(file.parent)
        except FileNotFoundError:
            return False
        return True

    def _read(self, path: str, start: int = 0, length: int = -1) -> bytes:
        status = self._stat(path)
        if length < 0:
            check_size(path, status.st_size, MAX_OVERHEAD_BYTES)
        with self._find_path(path).open("rb") as reading:
            reading.seek(start)
            return reading.read(length)

    def _read_or_none(self, path: str) -> bytes | None:
        try:
            return self._read(path)
        except FileNotFoundError:
            return None

    def _stat(self, path: str) -> os.stat_result:
        file = self._find_path(path)
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(file)
        return status

    def _delete(self, path: str) -> None:
        file = self._find_path(path)
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

    def _find_path(self, path: str) -> Path:
        parts = path.split("/")
        if any(part in {"", ".", ".."} or part.startswith(_OWN) or "\0" in part for part in parts):
            raise ValueError(f"invalid path of an object: {path!r}")
        return self._root.joinpath(*parts)


async def _run_in_thread(work: Callable[..., T], *args: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args))


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents. Returns those that did not exist."""
    if folder.is_dir():
        return []
    folders = _make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(_FOLDER_MODE)
        return [*folders, folder]
    # Looked at once: another process may remove the folder between two looks.
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotADirectoryError(f"{folder} is a file, the archive needs a folder")
    return folders


def _sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            if file.name != _LOCK and time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()
