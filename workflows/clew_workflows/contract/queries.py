"""The arguments of queries."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from clew_workflows.contract.names import MAX_PENDING, Id, Seq
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.validation import Input, MessageText


class PendingMessage(Input):
    """A user message that a caller may send next.

    Attributes:
        role: Always `user`.
        content: The text, without data URLs of 1 000 characters or more; leading and trailing white space is removed.
    """

    role: Literal["user"]
    content: MessageText


class ContextQuery(Input):
    """The argument of the query `context`.

    Attributes:
        context_ref: The lane; absent: the active one.
        at_seq: The context as it was when this was the newest entry; for a further page, the `at_seq` of the page
            before.
        call_id: The context of this model call. Not together with `pending`.
        context_policy: Overlays the policy in force.
        pending: Return a preview: the context of a model call if these messages were sent next, as one request.
        page: Where the page begins: the `next_page` of the page before.
    """

    context_ref: Id | None = None
    at_seq: Seq | None = None
    call_id: Id | None = None
    context_policy: ContextPolicy | None = None
    pending: tuple[PendingMessage, ...] | None = Field(default=None, min_length=1, max_length=MAX_PENDING)
    page: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_call_id(self) -> Self:
        if self.pending is not None and self.call_id is not None:
            raise ValueError("pending: a call has been made already, leave call_id out")
        return self


class TranscriptQuery(Input):
    """The argument of the query `transcript`.

    Attributes:
        context_ref: The lane; absent: the active one.
        from_seq: Begin with this entry.
        limit: Answer no more than so many messages, the newest ones. The system prompt is not counted.
        include_system: Begin with the system prompt.
    """

    context_ref: Id | None = None
    from_seq: Seq = 0
    limit: int | None = Field(default=None, ge=1)
    include_system: bool = False


class FollowQuery(Input):
    """The argument of the query `follow`.

    Attributes:
        from_seq: Begin with this entry; absent: return no entries.
    """

    from_seq: Seq | None = None


class WindowQuery(Input):
    """The argument of the query `window`.

    Attributes:
        token_budget: The most tokens of the window, from 1.
        context_ref: The lane; absent: the active one.
    """

    token_budget: int = 4_000
    context_ref: Id | None = None


class EntriesQuery(Input):
    """The argument of the query `entries`. An entry must meet all filters that are set.

    Attributes:
        from_seq: Begin with this entry.
        limit: The most entries of the page.
        kind: The kind of entry.
        request_id: The request.
        run_id: The run.
        call_id: The model call.
        tool_call_id: The tool call.
        parent_call_id: The model call before.
        iteration: The number of the model call in its run.
        source: The sender of an input.
        context_ref: The lane that the payload names.
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
