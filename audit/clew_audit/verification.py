"""Whether an archive is whole: every object of it is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from clew.errors import Closed
from clew.session.connection import validate_session_id
from clew_activities.archive import Archive, ObjectDamaged, ObjectMissing
from clew_audit.errors import translate_store_errors


@dataclass(slots=True)
class ArchiveReport:
    """What an archive consists of, and everything that is wrong with it."""

    session_id: str
    status: str = "unknown"
    last_seq: int = -1
    segments: int = 0
    nodes: int = 0
    entries: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All of it as one document."""
        return asdict(self)


async def verify(archive: Archive, session_id: str) -> ArchiveReport:
    """Read every object that a session's head leads to.

    Raises:
        Closed: the session has no archive.
        ArchiveUnavailable: the store cannot be reached.
    """
    found = ArchiveReport(validate_session_id(session_id))
    async with translate_store_errors():
        try:
            head = await archive.read_head(session_id)
        except (ObjectDamaged, ObjectMissing) as error:
            found.problems.append(str(error))
            return found
        if head is None:
            raise Closed(f"session {session_id!r} has no archive in this store (CLEW_STORE says which one it is)")
        found.status, found.last_seq = head.status, head.last_seq
        async for check in archive.verify(head.family, head.root):
            if "/segments/" in check.name:
                found.segments += 1
                found.entries += 0 if check.problem else check.to_seq - check.from_seq + 1
            else:
                found.nodes += 1
            if check.problem:
                found.problems.append(f"entries {check.from_seq} to {check.to_seq}: {check.problem}")
        if not found.problems and found.entries != head.last_seq + 1:
            found.problems.append(f"the head speaks of {head.last_seq + 1} entries, and there are {found.entries}")
        if head.state:
            try:
                await archive.read_state(head.family, head.state)
            except (ObjectDamaged, ObjectMissing) as error:
                found.problems.append(str(error))
    return found
