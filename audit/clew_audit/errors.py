"""The archive's errors, raised as the client's errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clew import errors
from clew.errors import ArchiveUnavailable, ClewError, UnknownKey
from clew_activities.archive import ObjectChanged, ObjectDamaged, ObjectMissing, StoreUnavailable, ThreadMismatch
from clew_activities.archive.errors import KeyMissing


class ArchiveDamaged(ClewError):
    """An object of the archive is missing or damaged."""

    type = "archive_damaged"


@asynccontextmanager
async def translate_store_errors() -> AsyncIterator[None]:
    """Raise `StoreUnavailable` as `ArchiveUnavailable`. The caller handles missing and damaged objects."""
    try:
        yield
    except KeyMissing as error:
        raise UnknownKey(str(error)) from error
    except StoreUnavailable as error:
        raise ArchiveUnavailable(f"{error}. Check CLEW_STORE, the network and the store's credentials") from error


@asynccontextmanager
async def translate_archive_errors() -> AsyncIterator[None]:
    """Raise every error of the archive as one of the client's errors."""
    try:
        async with translate_store_errors():
            yield
    except (ObjectDamaged, ObjectMissing) as error:
        raise ArchiveDamaged(str(error)) from error
    except (ObjectChanged, ThreadMismatch) as error:
        raise errors.ThreadMismatch(str(error)) from error
