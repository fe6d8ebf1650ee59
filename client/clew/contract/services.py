"""The arguments of the service workflows."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from clew.contract._input import Input
from clew.contract.names import Metadata, Seq, SessionId
from clew.contract.queries import ContextQuery, EntriesQuery


class ReadThreadInput(EntriesQuery):
    """The argument of the workflow `ReadThread`: the filters of the query `entries`, over archive and live session.

    Attributes:
        session_id: The session.
        to_seq: End with this entry.
        newest: Return at most this many of the newest matching entries, in ascending order. Excludes `limit`.
    """

    session_id: SessionId
    to_seq: Seq | None = None
    newest: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.newest is not None and self.limit is not None:
            raise ValueError("newest is a limit of its own: leave limit out")
        return self


class ReadContextInput(ContextQuery):
    """The argument of the workflow `ReadContext`: that of the query `context`, for any session, archived or not.

    Attributes:
        session_id: The session.
    """

    session_id: SessionId


class ForkSessionInput(Input):
    """The argument of the workflow `ForkSession`.

    Attributes:
        session_id: The session to fork.
        at_seq: The last entry that the session and the fork share.
        new_session_id: The id of the fork. Absent: one is made.
        metadata: The caller's own names and values; the `fork` entries have them.
    """

    session_id: SessionId
    at_seq: Seq
    new_session_id: SessionId | None = None
    metadata: Metadata | None = None


class RestoreInput(Input):
    """The argument of the workflow `RestoreSession`.

    Attributes:
        token: The token that `checkpoint` returned.
        session_id: The id of the new session. Absent: one is made.
    """

    token: str
    session_id: SessionId | None = None


class DeleteSessionInput(Input):
    """The argument of the workflow `DeleteSession`.

    Attributes:
        session_id: The session.
    """

    session_id: SessionId
