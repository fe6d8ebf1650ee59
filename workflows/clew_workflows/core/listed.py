"""What lists of sessions show that only the entries say: it is noted as they are committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from clew.contract.lists import cut_title
from clew.contract.payloads import ForkPayload, RunPayload, SessionPayload, UserMessage
from clew.thread.entries import Entry


@dataclass(frozen=True, slots=True)
class Listed:
    """Notes on the entries so far.

    Attributes:
        opening: The first words of the first message; None before it.
        started_at: When the session's first own entry was committed; None before it.
        active_at: When the newest entry was committed.
        finished: The number of requests that have ended.
        failed: The newest of them failed.
        hibernated: It was by hibernation that the session ended last.
        origin: The session that this one was forked from.
    """

    opening: str | None = None
    started_at: str | None = None
    active_at: str | None = None
    finished: int = 0
    failed: bool = False
    hibernated: bool = False
    origin: str | None = None


def note_entries(listed: Listed, entries: Sequence[Entry]) -> Listed:
    """Note what lists show of new entries, of which there is at least one."""
    listed = replace(listed, started_at=listed.started_at or entries[0].at, active_at=entries[-1].at)
    return reduce(_note, entries, listed)


def _note(listed: Listed, entry: Entry) -> Listed:
    match entry.body:
        case UserMessage(content=str() as content) if listed.opening is None:
            return replace(listed, opening=cut_title(content))
        case RunPayload(status=status):
            return replace(listed, finished=listed.finished + 1, failed=status == "failed")
        case SessionPayload(event=event):
            return replace(listed, hibernated=event == "hibernated")
        case ForkPayload(event="forked_from", session_id=origin):
            return replace(listed, origin=origin, started_at=entry.at, failed=False)
        case _:
            return listed
