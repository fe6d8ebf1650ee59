"""What is wrong with an archive, in the client's words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clew import errors
from clew.errors import ArchiveUnavailable, ClewError
from clew_activities.archive import ObjectChanged, ObjectDamaged, ObjectMissing, StoreUnavailable, ThreadMismatch


class ArchiveDamaged(ClewError):
    """An object of the archive is missing, or is not what was written."""

    type = "archive_damaged"


@asynccontextmanager
async def translate_store_errors() -> AsyncIterator[None]:
    """A store that cannot be reached ends the work; what is damaged is the caller's matter."""
    try:
        yield
    except StoreUnavailable as error:
        raise ArchiveUnavailable(f"{error} (CLEW_STORE says where the archive is)") from error


@asynccontextmanager
async def translate_archive_errors() -> AsyncIterator[None]:
    """Whatever is wrong with the archive ends the work."""
    try:
        async with translate_store_errors():
            yield
    except (ObjectDamaged, ObjectMissing) as error:
        raise ArchiveDamaged(str(error)) from error
    except (ObjectChanged, ThreadMismatch) as error:
        raise errors.ThreadMismatch(str(error)) from error
