"""A store of a user's own: the objects are rows of an SQLite file. `CLEW_STORE=module://tests.support.sqlite_store/FILE`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from clew_activities.archive import ObjectChanged
from clew_activities.archive.backends import MAX_OBJECT_BYTES, ObjectInfo, Objects, SignedPut, check_size
from clew_workflows.encryption import MAX_OVERHEAD_BYTES


def open_objects(url: str) -> Objects:
    """Open the file that the URL names after the module."""
    return SQLiteObjects(unquote(urlsplit(url).path))


class SQLiteObjects:
    """Objects in one table. Its transactions make writes atomic and durable, and order the writers."""

    def __init__(self, path: str) -> None:
        self._rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._rows.execute("CREATE TABLE IF NOT EXISTS objects (path TEXT PRIMARY KEY, data BLOB, modified REAL)")

    async def put(self, path: str, data: bytes) -> None:
        self._rows.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", (path, data, time.time()))

    async def holds(self, path: str, size: int) -> bool:
        return bool(self._find("SELECT 1 FROM objects WHERE path = ? AND length(data) = ?", path, size))

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        self._rows.execute("BEGIN IMMEDIATE")
        try:
            row = self._find("SELECT data FROM objects WHERE path = ?", path)
            if not accepts(row[0] if row else None):
                raise ObjectChanged(path)
            await self.put(path, data)
        except BaseException:
            self._rows.execute("ROLLBACK")
            raise
        self._rows.execute("COMMIT")

    async def get(self, path: str) -> bytes:
        check_size(path, (await self.describe(path)).size, MAX_OVERHEAD_BYTES)
        return await self.get_range(path, 0, MAX_OBJECT_BYTES + MAX_OVERHEAD_BYTES)

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        row = self._find("SELECT substr(data, ?, ?) FROM objects WHERE path = ?", start + 1, length, path)
        if row is None:
            raise FileNotFoundError(path)
        return bytes(row[0] or b"")

    async def describe(self, path: str) -> ObjectInfo:
        row = self._find("SELECT length(data), modified FROM objects WHERE path = ?", path)
        if row is None:
            raise FileNotFoundError(path)
        return ObjectInfo(row[0], datetime.fromtimestamp(row[1], UTC))

    async def delete(self, path: str) -> None:
        self._rows.execute("DELETE FROM objects WHERE path = ?", (path,))

    async def list(self, prefix: str) -> AsyncIterator[list[str]]:
        yield list(await self.list_after(prefix, None, -1))

    async def list_after(self, prefix: str, after: str | None, limit: int) -> Sequence[str]:
        # "0" comes right after "/".
        rows = self._rows.execute(
            "SELECT path FROM objects WHERE path > ? AND path > ? AND path < ? ORDER BY path LIMIT ?",
            (f"{prefix.rstrip('/')}/", after or "", f"{prefix.rstrip('/')}0", limit),
        )
        return [path for (path,) in rows]

    async def sign_put(self, path: str, expires_in: timedelta) -> SignedPut | None:
        return None

    def _find(self, query: str, *values: object) -> Any:
        return self._rows.execute(query, values).fetchone()
