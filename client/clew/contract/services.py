"""What the short workflows beside a session are started with."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from clew.contract._input import Input
from clew.contract.names import Metadata, Seq, SessionId
from clew.contract.queries import ContextQuery, EntriesQuery


class ReadThreadInput(EntriesQuery):
    """The argument of the workflow `ReadThread`: the filters of the query `entries`, over archive and live session.

    With `newest`, the last so many of the entries that meet them, in ascending order.
    """

    session_id: SessionId
    to_seq: Seq | None = None
    newest: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_direction(self) -> Self:
        if self.newest is not None and self.limit is not None:
            raise ValueError("newest is a limit of its own: leave limit out")
        return self


class ReadContextInput(ContextQuery):
    """The argument of the workflow `ReadContext`: that of the query `context`, for any session, archived or not."""

    session_id: SessionId


class ForkSessionInput(Input):
    """The argument of the workflow `ForkSession`. Without `new_session_id` the fork gets an id of its own."""

    session_id: SessionId
    at_seq: Seq
    new_session_id: SessionId | None = None
    metadata: Metadata | None = None


class RestoreInput(Input):
    """The argument of the workflow `RestoreSession`. Without a `session_id` the new session gets one of its own."""

    token: str
    session_id: SessionId | None = None


class DeleteSessionInput(Input):
    """The argument of the workflow `DeleteSession`."""

    session_id: SessionId
