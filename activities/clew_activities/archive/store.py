"""The store of an archive, a local folder or a bucket, with a time limit and the archive's errors."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from clew_activities.archive.archive_errors import KeyMissing, ObjectDamaged, ObjectMissing, StoreUnavailable
from clew_activities.archive.backends import (
    MAX_OBJECT_BYTES,
    Bucket,
    Folder,
    ObjectInfo,
    Objects,
    SignedPut,
    check_size,
)
from clew_activities.user_modules import NotImportable, import_user_module
from clew_workflows.contract.errors import NewerVersion, TooLarge, UnknownKey
from clew_workflows.encryption import (
    HEADER_BYTES,
    MAX_OVERHEAD_BYTES,
    NO_ENCRYPTION,
    Changed,
    Sealer,
    Unsealed,
    is_sealed,
    read_encryption,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

TIMEOUT_SECONDS = 20.0
_CONNECT_TIMEOUT = timedelta(seconds=5)
# Temporal's retry policy owns retries.
_NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}
# A missing bucket must not be taken for a session without an archive.
_MISSING_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)


class Store:
    """Immutable and mutable objects under slash-separated paths.

    Every operation ends within `timeout` seconds. It raises `ObjectMissing` if the object is absent, and
    `StoreUnavailable` for every other failure: a retry may succeed.
    """

    def __init__(self, objects: Objects, *, timeout: float = TIMEOUT_SECONDS, sealer: Sealer = NO_ENCRYPTION) -> None:
        """Use a backend. Objects are encrypted by `sealer`; sizes and contents are those before encryption."""
        self._objects = objects
        self._sealer = sealer
        self._timeout = timeout

    @classmethod
    def from_url(cls, url: str, *, timeout: float = TIMEOUT_SECONDS, sealer: Sealer = NO_ENCRYPTION) -> Store:
        """Open the store at `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://`.

        Credentials and endpoints come from the provider's own environment variables. An absent folder is created.
        `module://my_package.store/…` is a store of a user's own: the module's `open_objects(url)` makes it.

        Raises:
            ValueError: The URL's scheme is not supported, or the store's settings are incomplete.
        """
        try:
            scheme, host, path, *_ = urlsplit(url)
            match scheme:
                case "memory":
                    return cls(Bucket(MemoryStore()), timeout=timeout, sealer=sealer)
                case "file" if not host and path:
                    return cls(Folder(Path(unquote(path))), timeout=timeout, sealer=sealer)
                case "module":
                    return cls(_open_own(host, url), timeout=timeout, sealer=sealer)
                case "s3" | "gs" | "az":
                    client: ClientConfig = {
                        "timeout": timedelta(seconds=timeout),
                        "connect_timeout": _CONNECT_TIMEOUT,
                        # obstore ignores this variable if it gets client options.
                        "allow_http": _is_true(os.environ.get(f"{_VARIABLES[scheme]}_ALLOW_HTTP")),
                    }
                    bucket = from_url(url, client_options=client, retry_config=_NO_RETRIES)
                    return cls(Bucket(bucket), timeout=timeout, sealer=sealer)
        except (BaseError, OSError, ValueError) as error:
            raise ValueError(
                f"cannot open the store at {_redact(url)} (CLEW_STORE): {_describe_cause(error)}"
            ) from None
        raise ValueError(
            f"cannot open the store at {_redact(url)} (CLEW_STORE): "
            "use file://, s3://, gs://, az://, memory://, module:// or a folder"
        )

    async def put(self, path: str, data: bytes) -> None:
        """Write an object atomically, replacing an existing one. When it returns, the object is durable."""
        async with self._access(path, put=True):
            await self._objects.put(path, await self._seal(path, data))

    async def put_new(self, path: str, data: bytes) -> None:
        """Write an object whose path is made from its content, unless it exists with the same size."""
        # Without a conditional put: not every store has one, and two writers of the same content do no harm.
        if not await self.holds(path, len(data)):
            await self.put(path, data)

    async def holds(self, path: str, size: int) -> bool:
        """Whether the object is stored durably with this size, and encrypted if objects are to be."""
        overhead = self._sealer.overhead if size else 0
        if overhead is None:
            # Only the codec knows the size of what it writes.
            return False
        async with self._access(path):
            return await self._objects.holds(path, size + overhead)

    async def replace(self, path: str, data: bytes, accepts: Callable[[bytes | None], bool]) -> None:
        """Write an object if `accepts` returns True for the existing object's bytes, or for None if it is absent.

        A write in between is detected: in a bucket by the server, in a folder among the processes of one machine.

        Raises:
            ObjectChanged: `accepts` returned False, or another writer wrote the object in between.
        """
        async with self._access(path, put=True):
            sealed = await self._seal(path, data)
            await self._objects.replace(
                path,
                sealed,
                lambda present: accepts(None if present is None else self._unseal_now(path, present)),
            )

    async def get(self, path: str) -> bytes:
        """Read an object.

        Raises:
            KeyMissing: It is not encrypted, though there are keys, or encrypted with another key.
            ObjectDamaged: It has more than `MAX_OBJECT_BYTES`, so Clew has not written it.
        """
        async with self._access(path):
            data = await self._objects.get(path)
            if not data and self._sealer.is_on:
                # Only markers are empty, and nothing reads them.
                raise ObjectDamaged(path, "it is empty")
            return await self._unseal(path, data)

    async def get_part(self, path: str, offset: int, length: int | None = None) -> tuple[bytes, int]:
        """Read up to `length` bytes from `offset`; none past the end. Returns them and the object's full size.

        Of an encrypted object all is read.

        Raises:
            ObjectDamaged: The part has more than `MAX_OBJECT_BYTES`.
        """
        if self._sealer.is_on:
            data = await self.get(path)
            return data[offset:][:length], len(data)
        size = await self.get_size(path)
        length = size - offset if length is None else min(length, size - offset)
        if length > MAX_OBJECT_BYTES:
            raise ObjectDamaged(path, f"it has {size} bytes, at most {MAX_OBJECT_BYTES} are written")
        if length <= 0:
            return b"", size
        async with self._access(path):
            part = await self._objects.get_range(path, offset, length)
            return (await self._unseal(path, part) if offset == 0 else part), size

    @property
    def encrypts(self) -> bool:
        """Whether objects are encrypted."""
        return self._sealer.is_on

    async def sign_put(self, path: str, expires_in: timedelta) -> SignedPut | None:
        """Sign a URL for a write of an object by others; None: the store cannot.

        Where objects are encrypted, others must encrypt this one under the name that `name_object` makes.
        """
        async with self._access(path, put=True):
            return await self._objects.sign_put(path, expires_in)

    async def get_foreign(self, path: str, max_bytes: int) -> bytes:
        """Read an object that others have written. One that is larger than `max_bytes` is not read.

        Raises:
            Changed: It was changed since it was encrypted, or was encrypted under another name.
            NewerVersion: A newer version of Clew has encrypted it.
            ObjectMissing: There is no such object.
            TooLarge: It has more than `max_bytes`.
            UnknownKey: It is encrypted with a key that this process does not have.
            Unsealed: It is not encrypted, and objects are.
        """
        size = await self.get_size(path)
        if size > max_bytes + (MAX_OVERHEAD_BYTES if self.encrypts else 0):
            raise TooLarge(f"the object has {size} bytes, at most {max_bytes} are read")
        async with self._access(path):
            # It may have been replaced by a larger one meanwhile.
            data = await self._objects.get_range(path, 0, size) if size else b""
        if not self.encrypts:
            return data
        if not is_sealed(data):
            raise Unsealed("it is not encrypted")
        data = await asyncio.to_thread(self._sealer.unseal, data, name_object(path))
        if len(data) > max_bytes:
            raise TooLarge(f"the object has {len(data)} bytes, at most {max_bytes} are read")
        return data

    async def rekey(self, path: str) -> bool:
        """Encrypt an object anew, unless it has the key that encrypts. Returns whether it was written.

        Raises:
            ObjectChanged: Another writer has replaced or deleted it in between.
        """
        size = await self.get_size(path)
        async with self._access(path):
            start = await self._objects.get_range(path, 0, min(size, HEADER_BYTES)) if size else b""
            if self._sealer.is_current(start):
                return False
            before = await self._objects.get(path)
            sealed = await self._seal(path, await self._unseal(path, before))
        async with self._access(path, put=True):
            await self._objects.replace(path, sealed, lambda present: present == before)
        return True

    async def get_size(self, path: str) -> int:
        """Return an object's size in the store, in bytes."""
        return (await self._describe(path)).size

    async def get_age(self, path: str) -> timedelta:
        """Return how long ago an object was written, by the store's clock and this machine's."""
        return datetime.now(UTC) - (await self._describe(path)).modified

    async def delete(self, path: str) -> None:
        """Delete an object. An absent one is not an error."""
        try:
            async with self._access(path):
                await self._objects.delete(path)
        except ObjectMissing:
            pass

    async def list(self, prefix: str) -> AsyncIterator[str]:
        """List the paths of all objects in a folder and below, in no order."""
        with _translate_errors(prefix):
            chunks = self._objects.list(prefix)
            while True:
                async with asyncio.timeout(self._timeout):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                for path in chunk:
                    yield path

    async def list_after(self, prefix: str, after: str | None, limit: int) -> Sequence[str]:
        """List the first `limit` paths of objects in a folder, in order, after a path."""
        with _translate_errors(prefix):
            return await self._objects.list_after(prefix, after, limit)

    @asynccontextmanager
    async def _access(self, path: str, *, put: bool = False) -> AsyncIterator[None]:
        """Limit the time of an operation, and raise its failure as an error of the archive that names the object."""
        with _translate_errors(path, put=put):
            async with asyncio.timeout(self._timeout):
                yield

    async def _seal(self, path: str, data: bytes) -> bytes:
        if self._sealer.blocks:
            return await asyncio.to_thread(self._sealer.seal, data, name_object(path))
        return self._sealer.seal(data, name_object(path))

    async def _unseal(self, path: str, data: bytes) -> bytes:
        if self._sealer.blocks:
            return await asyncio.to_thread(self._unseal_now, path, data)
        return self._unseal_now(path, data)

    def _unseal_now(self, path: str, data: bytes) -> bytes:
        try:
            unsealed = self._sealer.unseal(data, name_object(path))
        except Changed as error:
            raise ObjectDamaged(path, str(error)) from None
        except UnknownKey as error:
            raise KeyMissing(path, str(error)) from None
        except NewerVersion as error:
            raise NewerVersion(f"{path}: {error}") from None
        check_size(path, len(unsealed))
        return unsealed

    async def _describe(self, path: str) -> ObjectInfo:
        async with self._access(path):
            return await self._objects.describe(path)


def open_store(env: Mapping[str, str]) -> Store:
    """Open the store that `CLEW_STORE` names, a URL or a folder; by default a folder in the user's data folder.

    Its objects are encrypted as the environment says.

    Raises:
        ValueError: The value names no store, or the encryption keys are not valid.
    """
    name = env.get("CLEW_STORE") or str(_find_data_home(env) / "clew" / "store")
    url = name if "://" in name else Path(name).expanduser().absolute().as_uri()
    return Store.from_url(url, sealer=read_encryption(env).sealer)


def _open_own(name: str, url: str) -> Objects:
    """Open the store that a module of the user makes.

    Raises:
        ValueError: The module cannot be imported, or makes no store.
    """
    try:
        module = import_user_module(name)
    except NotImportable as error:
        raise ValueError(f"the module {name!r} cannot be imported: {error}") from None
    open_objects: Callable[[str], Objects] | None = getattr(module, "open_objects", None)
    if not callable(open_objects):
        raise ValueError(f"the module {name!r} defines no function open_objects(url)")
    objects = open_objects(url)
    if missing := [method for method in _METHODS if not callable(getattr(objects, method, None))]:
        raise ValueError(f"open_objects of {name!r} makes an object without {', '.join(missing)}")
    return objects


def name_object(path: str) -> str:
    """Name an object for its encryption: by its path without the namespace, so that a store can be copied."""
    return path.partition("/")[2]


_METHODS = sorted(name for name in vars(Objects) if not name.startswith("_"))
_VARIABLES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}


def _find_data_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def _is_true(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "yes", "on"}


@contextmanager
def _translate_errors(path: str, *, put: bool = False) -> Iterator[None]:
    """Raise a failure of the backend as an error of the archive that names the object."""
    try:
        yield
    except TimeoutError:
        raise StoreUnavailable(path, "it did not answer in time") from None
    except FileNotFoundError as error:
        if put or _MISSING_BUCKET.search(str(error)):
            raise StoreUnavailable(path, _describe_cause(error)) from None
        raise ObjectMissing(path) from None
    except (BaseError, OSError, ValueError) as error:
        raise StoreUnavailable(path, _describe_cause(error)) from None


def _describe_cause(error: Exception) -> str:
    """Make one line of a failure's message, without URLs' credentials and queries."""
    text = str(error).partition("\n\nDebug source")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    # The rest of a response's body may repeat the request with the key's id and the signature.
    line = text.partition("<")[0].partition("\n")[0].strip().rstrip(":")
    return _redact(line)[:300] + (f": {code[1]}" if code else "")


def _redact(text: str) -> str:
    """Remove users, passwords and queries from the URLs in a text."""
    return re.sub(r"\?[^\s)\"']*", "", re.sub(r"//[^/\s@]*@", "//", text))
