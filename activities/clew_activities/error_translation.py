"""Errors of activities as application errors with their wire types, which the workflows read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.exceptions import ApplicationError

from clew_activities.archive import ArchiveError, ObjectDamaged, ObjectMissing, ThreadMismatch
from clew_workflows.contract.errors import NewerVersion, Refusal


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
