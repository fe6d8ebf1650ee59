"""The archive's errors, and how activities raise them and refusals to workflows.

Each error names the object that it is about.

ArchiveError
├── ObjectChanged          another writer was faster; read again and retry
├── ObjectDamaged          an object's content is wrong
├── ObjectMissing          the store has no such object
├── StoreUnavailable       the store fails at present; retry
│   └── KeyMissing         this worker cannot decrypt the object, another one may
└── ThreadMismatch         entries do not continue the archived thread
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.exceptions import ApplicationError

from clew_workflows.contract.errors import NewerVersion, Refusal


class ArchiveError(Exception):
    """The base of the archive's errors."""


class StoreUnavailable(ArchiveError):
    """An operation of the store failed: network, permission, timeout. A retry may succeed."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"the store cannot be used at {name}: {cause}")
        self.name, self.cause = name, cause


class KeyMissing(StoreUnavailable):
    """An object is encrypted with a key that this process does not have. One that has the key may succeed."""


class ObjectMissing(ArchiveError):
    """The store answers, and has no such object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is missing from the store")
        self.name = name


class ObjectChanged(ArchiveError):
    """Another writer has replaced an object since it was read. A retry reads the new one."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was changed by another writer")
        self.name = name


class ObjectDamaged(ArchiveError):
    """An object's content is not what was written, or does not match the object that refers to it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} is damaged: {why}")
        self.name, self.why = name, why


class ThreadMismatch(ArchiveError):
    """Entries do not continue the archived thread, or the thread has no entry with the requested seq."""


@asynccontextmanager
async def translate_refusals() -> AsyncIterator[None]:
    """Raise refusals as application errors with their wire types. They are final: a retry is refused, too."""
    try:
        yield
    except Refusal as refusal:
        raise ApplicationError(str(refusal), type=refusal.type, non_retryable=True) from refusal


@asynccontextmanager
async def translate_archive_errors(*, damage_is_final: bool = False) -> AsyncIterator[None]:
    """Raise the archive's errors and refusals as application errors with their wire types.

    Errors that a retry may not meet are retryable. So are a damaged object and one of a newer version, for a session
    that waits until the object is restored or a newer worker reads it; a reader passes `damage_is_final` and fails at
    once.
    """
    try:
        yield
    except Refusal as error:
        is_final = damage_is_final or not isinstance(error, NewerVersion)
        raise ApplicationError(error.message, type=error.type, non_retryable=is_final) from error
    except ArchiveError as error:
        error_type, is_final = "archive_unavailable", False
        if isinstance(error, ThreadMismatch):
            error_type, is_final = "thread_mismatch", True
        elif isinstance(error, ObjectDamaged | ObjectMissing):
            error_type, is_final = "archive_damaged", damage_is_final
        raise ApplicationError(str(error), type=error_type, non_retryable=is_final) from error
