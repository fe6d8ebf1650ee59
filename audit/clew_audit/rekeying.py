"""Rotation of keys: every object of an archive is encrypted anew with the key that encrypts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Any

from clew_activities.archive import Archive, ObjectChanged, ObjectDamaged, ObjectMissing
from clew_activities.archive.errors import KeyMissing
from clew_audit.errors import translate_store_errors

AT_ONCE = 16
"""Objects that are read and written at the same time."""
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
    report, free = Rekeying(), asyncio.Semaphore(AT_ONCE)

    async def rekey(path: str) -> None:
        try:
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
