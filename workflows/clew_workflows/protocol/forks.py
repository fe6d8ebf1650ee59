"""A session that begins with another one's thread."""

from __future__ import annotations

from clew_workflows.protocol._value import Value


class Fork(Value):
    """Make a new session of another one's thread up to and with an entry, and tell the other one of it.

    `at` and `entry_ids` are those of the two entries that say so, the new session's and the other one's.
    """

    session_id: str
    at_seq: int
    new_session_id: str
    metadata: dict[str, str] | None = None
    at: str
    entry_ids: tuple[str, str]
