"""Forks: sessions that begin with the thread of another session."""

from __future__ import annotations

from clew_workflows.protocol._value import Value


class Fork(Value):
    """Make a new session from another session's thread, and record the fork in both.

    Attributes:
        session_id: The parent.
        at_seq: The last entry that the fork shares with its parent.
        new_session_id: The fork.
        metadata: The caller's metadata for both `fork` entries.
        at: The time of both `fork` entries, RFC 3339.
        entry_ids: The ids of both `fork` entries, the fork's and the parent's.
    """

    session_id: str
    at_seq: int
    new_session_id: str
    metadata: dict[str, str] | None = None
    at: str
    entry_ids: tuple[str, str]
