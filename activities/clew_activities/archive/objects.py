"""The interface between a store and its backend, and the backend for buckets. Errors are the library's own."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, cast

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

from clew_activities.archive.errors import ObjectChanged, ObjectDamaged
from clew_workflows.encryption import MAX_OVERHEAD_BYTES

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

MAX_OBJECT_BYTES = 16 * 1024 * 1024
"""Largest object that is read in one piece, in bytes: a large tool result. Other objects have about a tenth of it."""
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


class Objects(Protocol):
    """Objects under slash-separated paths.

    A write is durable when it returns. Reading an absent object raises FileNotFoundError.
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
        shown = await obstore.get_async(self._objects, path)
        if bytes(await shown.bytes_async()) != data:
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
