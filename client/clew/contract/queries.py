"""What queries ask of a session."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from clew.contract._input import Input
from clew.contract.names import Id, Seq
from clew.contract.policy import ContextPolicy
from clew.contract.sizes import MAX_PENDING


class PendingMessage(Input):
    """A message that may be asked next. Only users ask, so it has no other role."""

    role: Literal["user"]
    content: str


class ContextQuery(Input):
    """The argument of the query `context`.

    `page` and `at_seq` are what the page before it named as `next_page` and `at_seq`. With `pending` the answer is a
    preview: what the model would be shown if these messages were asked next, in one request.
    """

    context_ref: Id | None = None
    at_seq: Seq | None = None
    call_id: Id | None = None
    context_policy: ContextPolicy | None = None
    pending: tuple[PendingMessage, ...] | None = Field(default=None, min_length=1, max_length=MAX_PENDING)
    page: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _asked_or_pending(self) -> Self:
        if self.pending is not None and self.call_id is not None:
            raise ValueError("pending: a call has been made already, leave call_id out")
        return self


class TranscriptQuery(Input):
    """The argument of the query `transcript`."""

    context_ref: Id | None = None
    from_seq: Seq = 0
    limit: int | None = Field(default=None, ge=1)
    include_system: bool = False


class WindowQuery(Input):
    """The argument of the query `window`."""

    token_budget: int
    context_ref: Id | None = None


class EntriesQuery(Input):
    """The argument of the query `entries`; filters that are given must all hold.

    Beside `kind` and `context_ref` they are refs, under the names that entries have them by.
    """

    from_seq: Seq = 0
    limit: int | None = Field(default=None, ge=1)
    kind: str | None = None
    request_id: Id | None = None
    run_id: Id | None = None
    call_id: Id | None = None
    tool_call_id: Id | None = None
    parent_call_id: Id | None = None
    iteration: int | None = Field(default=None, ge=1)
    source: Id | None = None
    context_ref: Id | None = None
