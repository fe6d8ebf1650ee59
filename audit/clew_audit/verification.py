"""The archive from outside: reads and checks every object of a session's, and encrypts a namespace's anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from clew.session.connection import validate_session_id
from clew_activities.archive import (
    Archive,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    StoreUnavailable,
    ThreadMismatch,
)
from clew_activities.archive.archive_errors import KeyMissing
from clew_activities.archive.blob_store import Blobs, list_blobs
from clew_activities.tools.stored_results import find_stored_result
from clew_workflows.contract import errors
from clew_workflows.contract.errors import (
    ArchiveUnavailable,
    ClewError,
    ContentMismatch,
    NotFound,
    UnknownBlob,
    UnknownKey,
)
from clew_workflows.thread.entries import Entry

# The archive's errors, raised as the client's errors.


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


# Rotation of keys: every object of an archive is encrypted anew with the key that encrypts.


AT_ONCE = 16
"""Objects that are read and written at the same time."""
BLOBS_AT_ONCE = 2
"""Blobs among them: each takes up to 150 MiB of memory."""
MAX_PROBLEMS = 100
"""The most problems that a report lists."""


@dataclass(slots=True)
class Rekeying:
    """What a rotation has done.

    Attributes:
        rewritten: Number of objects that were encrypted anew.
        current: Number of objects that had the key already, or are empty.
        changed: Number of objects that sessions have written or deleted meanwhile, with the keys of their workers.
        failed: Number of objects that could not be decrypted.
        problems: Why, for the first `MAX_PROBLEMS`.
    """

    rewritten: int = 0
    current: int = 0
    changed: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


async def rekey_archive(archive: Archive) -> Rekeying:
    """Encrypt every object of a namespace anew that does not have the key that encrypts.

    It can be repeated at any time, and goes on where it was interrupted. Sessions may run meanwhile: an object that
    one of them writes or deletes is left as it is.

    Raises:
        ArchiveUnavailable: The store cannot be reached.
    """
    report, free, room = Rekeying(), asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(BLOBS_AT_ONCE)

    async def rekey(path: str) -> None:
        try:
            async with room if "/blobs/" in path else nullcontext():
                rewritten = await archive.rekey(path)
        except (ObjectChanged, ObjectMissing):
            report.changed += 1
        except (KeyMissing, ObjectDamaged) as error:
            report.failed += 1
            if len(report.problems) < MAX_PROBLEMS:
                report.problems.append(str(error))
        else:
            report.rewritten += rewritten
            report.current += not rewritten
        finally:
            free.release()

    async with translate_store_errors():
        try:
            async with asyncio.TaskGroup() as tasks:
                async for path in archive.list_paths():
                    await free.acquire()
                    tasks.create_task(rekey(path))
        except* Exception as failed:
            raise failed.exceptions[0] from None
    return report


@dataclass(slots=True)
class ArchiveReport:
    """The result of a verification.

    Attributes:
        session_id: The session.
        status: Status in the head: `live` or `closed`; `unknown`: the head cannot be read.
        last_seq: Seq of the last archived entry.
        segments: Number of segments.
        nodes: Number of nodes of the index.
        entries: Number of entries in undamaged segments.
        results: Number of large tool results, and of earlier calls of summaries, that those entries refer to.
        blobs: Number of images, recordings and files that they name.
        problems: Everything that is wrong with the archive.
    """

    session_id: str
    status: str = "unknown"
    last_seq: int = -1
    segments: int = 0
    nodes: int = 0
    entries: int = 0
    results: int = 0
    blobs: int = 0
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


async def verify_archive(archive: Archive, session_id: str) -> ArchiveReport:
    """Read and check every object that a session's head leads to.

    Raises:
        NotFound: The session has no archive.
        ArchiveUnavailable: The store cannot be reached.
    """
    report = ArchiveReport(validate_session_id(session_id))
    async with translate_store_errors():
        try:
            head = await archive.read_head(session_id)
        except (ObjectDamaged, ObjectMissing) as error:
            report.problems.append(str(error))
            return report
        if head is None:
            raise NotFound(f"session {session_id!r} has no archive in this store: check CLEW_STORE and the namespace")
        report.status, report.last_seq = head.status, head.last_seq
        read = set[str]()
        async for check in archive.verify(head.family, head.root):
            if "/segments/" in check.name:
                report.segments += 1
                report.entries += 0 if check.problem else check.to_seq - check.from_seq + 1
            else:
                report.nodes += 1
            if check.problem:
                report.problems.append(f"entries {check.from_seq} to {check.to_seq}: {check.problem}")
            for entry in check.entries:
                await _verify_named(archive, head.family, entry, read, report)
        if not report.problems and report.entries != head.last_seq + 1:
            report.problems.append(f"the head says {head.last_seq + 1} entries, but there are {report.entries}")
        try:
            await archive.verify_state(head)
        except (ObjectDamaged, ObjectMissing) as error:
            report.problems.append(str(error))
    return report


async def _verify_named(archive: Archive, family: str, entry: Entry, read: set[str], report: ArchiveReport) -> None:
    """Read what an entry names beside the thread, and was not `read` before: a large tool result, and blobs."""
    try:
        stored = find_stored_result(entry)
        if stored and stored not in read:
            read.add(stored)
            report.results += 1
            await archive.get_result(family, stored)
    except (ObjectDamaged, ObjectMissing, ValueError) as error:
        report.problems.append(f"the result in entry {entry.seq}: {error}")
    for blob in list_blobs(entry):
        if blob["digest"] in read:
            continue
        read.add(blob["digest"])
        report.blobs += 1
        try:
            await archive.get_blob(family, blob["digest"])
            await Blobs(archive).check(family, (blob,))
        except (ObjectDamaged, ObjectMissing, UnknownBlob, ContentMismatch) as error:
            report.problems.append(f"the blob in entry {entry.seq}: {error}")
