"""What keeps the objects of a store: a folder of this machine, or a bucket. Errors are those of its library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, cast

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

from clew_activities.archive.errors import ObjectChanged, ObjectDamaged

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

MAX_OBJECT_BYTES = 16 * 1024 * 1024
"""Largest object that is read whole, in bytes: that of a large tool result. All others have about a tenth of it."""


def check_size(path: str, size: int) -> None:
    """Refuse to read an object whole that Clew cannot have written.

    Raises:
        ObjectDamaged: it has more than `MAX_OBJECT_BYTES`.
    """
    if size > MAX_OBJECT_BYTES:
        raise ObjectDamaged(path, f"it has {size} bytes, and no object has more than {MAX_OBJECT_BYTES}")


@dataclass(frozen=True, slots=True)
class Described:
    """An object's size in bytes, and when it was written."""

    size: int
    modified: datetime


class Objects(Protocol):
    """Objects under slash-separated paths. A write is durable when it returns; absence is FileNotFoundError."""

    async def put(self, path: str, data: bytes) -> None:
        """Write an object, whole or not at all, over what is there."""
        ...

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size is there, durably."""
        ...

    async def replace(self, path: str, data: bytes, over: Callable[[bytes | None], bool]) -> None:
        """Write an object if `over` accepts what is there: its bytes, or None.

        Raises:
            ObjectChanged: `over` refuses it, or it was written in between.
        """
        ...

    async def get(self, path: str) -> bytes:
        """The whole object.

        Raises:
            ObjectDamaged: it has more than `MAX_OBJECT_BYTES`.
        """
        ...

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, which lies within the object; fewer where it ends before."""
        ...

    async def describe(self, path: str) -> Described:
        """The object's size and age."""
        ...

    async def delete(self, path: str) -> None:
        """Remove an object; one that is absent is fine, or FileNotFoundError."""
        ...

    def list(self, prefix: str) -> AsyncIterator[list[str]]:
        """The paths of all objects below a folder, some at a time, in no order."""
        ...


class Bucket:
    """Objects in a bucket, or in memory."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, path: str, data: bytes) -> None:
        """Write an object, whole or not at all, over what is there."""
        await obstore.put_async(self._objects, path, data, use_multipart=False)

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size is there."""
        try:
            return (await self.describe(path)).size == size
        except FileNotFoundError:
            return False

    async def replace(self, path: str, data: bytes, over: Callable[[bytes | None], bool]) -> None:
        """Write an object if `over` accepts what is there.

        A bucket without conditional writes leaves a moment in which another writer is overwritten.
        """
        present: bytes | None = None
        mode: PutMode = "create"
        with suppress(FileNotFoundError):
            found = await obstore.get_async(self._objects, path)
            check_size(path, found.meta["size"])
            present = bytes(await found.bytes_async())
            # The library takes no `None` back that it has given.
            known = {key: value for key in ("e_tag", "version") if (value := found.meta[key])}
            mode = cast("UpdateVersion", known)
        if not over(present):
            raise ObjectChanged(path)
        try:
            await obstore.put_async(self._objects, path, data, mode=mode, use_multipart=False)
        except NotImplementedError:
            await obstore.put_async(self._objects, path, data, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            raise ObjectChanged(path) from None

    async def get(self, path: str) -> bytes:
        """The whole object."""
        found = await obstore.get_async(self._objects, path)
        check_size(path, found.meta["size"])
        return bytes(await found.bytes_async())

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer where the object ends before."""
        return bytes(await obstore.get_range_async(self._objects, path, start=start, length=length))

    async def describe(self, path: str) -> Described:
        """The object's size and age."""
        found = await obstore.head_async(self._objects, path)
        return Described(found["size"], found["last_modified"])

    async def delete(self, path: str) -> None:
        """Remove an object."""
        await obstore.delete_async(self._objects, path)

    async def list(self, prefix: str) -> AsyncIterator[list[str]]:
        """The paths of all objects below a folder, some at a time."""
        async for chunk in obstore.list(self._objects, prefix):
            yield [found["path"] for found in chunk]
