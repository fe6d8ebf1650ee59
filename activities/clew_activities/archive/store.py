"""Objects in a local folder or in a bucket: one small API, with a time limit and the archive's errors."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from clew_activities.archive.errors import ObjectMissing, StoreUnavailable
from clew_activities.archive.folder import Folder
from clew_activities.archive.objects import Bucket, Described, Objects

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

TIMEOUT_SECONDS = 20.0
_CONNECT_TIMEOUT = timedelta(seconds=5)
# Temporal's retry policy owns retries.
_NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}
# A bucket that is not there must not read as an archive that is not there.
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)


class Store:
    """Immutable and mutable objects under slash-separated paths.

    Every operation ends within `timeout` seconds. It raises `ObjectMissing` for what is not there, and
    `StoreUnavailable` for every failure that another attempt may not meet.
    """

    def __init__(self, objects: Objects, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._objects = objects
        self._timeout = timeout

    @classmethod
    def from_url(cls, url: str, *, timeout: float = TIMEOUT_SECONDS) -> Store:
        """The store at `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://`.

        Credentials and endpoints come from the provider's own environment variables. A folder is made if absent.

        Raises:
            ValueError: there is no such kind of store, or its settings are incomplete.
        """
        try:
            scheme, host, path, *_ = urlsplit(url)
            match scheme:
                case "memory":
                    return cls(Bucket(MemoryStore()), timeout=timeout)
                case "file" if not host and path:
                    return cls(Folder(Path(unquote(path))), timeout=timeout)
                case "s3" | "gs" | "az":
                    client: ClientConfig = {
                        "timeout": timedelta(seconds=timeout),
                        "connect_timeout": _CONNECT_TIMEOUT,
                        # Read here because obstore forgets its own reading once it is given a client's options.
                        "allow_http": _is_true(os.environ.get(f"{_VARIABLES[scheme]}_ALLOW_HTTP")),
                    }
                    bucket = from_url(url, client_options=client, retry_config=_NO_RETRIES)
                    return cls(Bucket(bucket), timeout=timeout)
        except (BaseError, OSError, ValueError) as error:
            raise ValueError(f"no store at {_redacted(url)}: {_cause(error)}") from None
        raise ValueError(f"no store at {_redacted(url)}: use file://, s3://, gs://, az://, memory:// or a folder")

    async def put(self, path: str, data: bytes) -> None:
        """Write an object, whole or not at all, over what is there. When it returns, the object is durable."""
        with _named(path, put=True):
            async with asyncio.timeout(self._timeout):
                await self._objects.put(path, data)

    async def put_new(self, path: str, data: bytes) -> None:
        """Write an object whose path is made from its content; where it is there whole, nothing is written."""
        # Not put on condition: not every store knows conditions, and two writers of the same content are fine.
        if not await self.holds(path, len(data)):
            await self.put(path, data)

    async def holds(self, path: str, size: int) -> bool:
        """Whether an object of this size is there, durably."""
        with _named(path):
            async with asyncio.timeout(self._timeout):
                return await self._objects.holds(path, size)

    async def replace(self, path: str, data: bytes, over: Callable[[bytes | None], bool]) -> None:
        """Write an object if what is there suits `over`, which is given its bytes, or None where there is none.

        Nobody writes it in between: a bucket makes sure of that, and a folder does for one machine.

        Raises:
            ObjectChanged: it does not suit, or was written in between.
        """
        with _named(path, put=True):
            async with asyncio.timeout(self._timeout):
                await self._objects.replace(path, data, over)

    async def get(self, path: str) -> bytes:
        """The whole object.

        Raises:
            ObjectDamaged: it has more than `MAX_OBJECT_BYTES`, so Clew has not written it.
        """
        with _named(path):
            async with asyncio.timeout(self._timeout):
                return await self._objects.get(path)

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, which lies within the object; fewer where it ends before."""
        with _named(path):
            async with asyncio.timeout(self._timeout):
                return await self._objects.get_range(path, start, length)

    async def get_size(self, path: str) -> int:
        """The object's length in bytes."""
        return (await self._described(path)).size

    async def get_age(self, path: str) -> timedelta:
        """How long ago the object was written, by the store's clock and this machine's."""
        return datetime.now(UTC) - (await self._described(path)).modified

    async def delete(self, path: str) -> None:
        """Remove an object; one that is absent is fine."""
        try:
            with _named(path):
                async with asyncio.timeout(self._timeout):
                    await self._objects.delete(path)
        except ObjectMissing:
            pass

    async def list(self, prefix: str) -> AsyncIterator[str]:
        """The paths of all objects below a folder, in no order."""
        with _named(prefix):
            chunks = self._objects.list(prefix)
            while True:
                async with asyncio.timeout(self._timeout):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                for path in chunk:
                    yield path

    async def _described(self, path: str) -> Described:
        with _named(path):
            async with asyncio.timeout(self._timeout):
                return await self._objects.describe(path)


def open_store(env: Mapping[str, str]) -> Store:
    """The store that `CLEW_STORE` names, a URL or a folder; by default a folder among the user's data.

    Raises:
        ValueError: it names no store.
    """
    where = env.get("CLEW_STORE") or str(_data_home(env) / "clew" / "store")
    return Store.from_url(where if "://" in where else Path(where).expanduser().absolute().as_uri())


_VARIABLES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}


def _data_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def _is_true(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "yes", "on"}


@contextmanager
def _named(path: str, *, put: bool = False) -> Iterator[None]:
    """Failures within in the archive's words, naming the object."""
    try:
        yield
    except TimeoutError:
        raise StoreUnavailable(path, "no answer in time") from None
    except FileNotFoundError as error:
        if put or _NO_BUCKET.search(str(error)):
            raise StoreUnavailable(path, _cause(error)) from None
        raise ObjectMissing(path) from None
    except (BaseError, OSError, ValueError) as error:
        raise StoreUnavailable(path, _cause(error)) from None


def _cause(error: Exception) -> str:
    """What a failure says of itself: obstore's first line, without what may be a credential."""
    text = str(error).partition("\n\nDebug source")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    # The rest of an answer's body repeats the request, the key's id and the signature among it.
    line = text.partition("<")[0].partition("\n")[0].strip().rstrip(":")
    return _redacted(line)[:300] + (f": {code[1]}" if code else "")


def _redacted(text: str) -> str:
    """A text with URLs that name no user, no password and no signed query."""
    return re.sub(r"\?[^\s)\"']*", "", re.sub(r"//[^/\s@]*@", "//", text))
