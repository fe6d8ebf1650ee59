"""The wire contract's other half: what a session answers. Outputs may gain optional fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from clew.model.messages import Message, ToolSpec
from clew.outcomes import Output, Usage


class SessionStatus(Output):
    """The answer to the query `status`."""

    session_id: str
    status: str
    active_context_ref: str
    request_id: str | None = None
    run_id: str | None = None
    iteration: int = 0
    rev: int
    projection_cursor_seq: int
    pending_context_op: dict[str, Any] | None = None
    pending_operations: list[dict[str, Any]] = Field(default_factory=list)
    pending_inputs: int = 0
    queued_messages: int = 0
    queued_request_ids: list[str] = Field(default_factory=list)
    pending_config: list[str] = Field(default_factory=list)
    pending_approvals: list[dict[str, Any]] = Field(default_factory=list)
    usage: Usage = Usage()
    model: str
    config: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)
    first_live_seq: int = 0
    closed: bool = False


class InputReceipt(Output):
    """An input was accepted: for which request, and at which place among those that wait."""

    input_id: str
    request_id: str
    position: int


class OperationReceipt(Output):
    """A context operation was applied (as the entry `seq`), deferred to the end of the run, or is known already."""

    op_id: str
    status: Literal["applied", "deferred", "duplicate"]
    seq: int | None = None


class ConfigureReceipt(Output):
    """A change of configuration was applied (as the entry `seq`), or deferred to the end of the run."""

    seq: int | None = None
    status: Literal["applied", "deferred"]


class SummaryReceipt(Output):
    """A summary was committed as the entry `seq`. It speaks for the lane from one seq to another."""

    seq: int
    from_seq: int
    to_seq: int
    tokens: int


class CancelReceipt(Output):
    """Whether there was something to cancel."""

    request_id: str
    cancelled: bool


class ApprovalReceipt(Output):
    """How a tool call was decided upon."""

    tool_call_id: str
    decision: Literal["approve", "deny"]


class CheckpointReceipt(Output):
    """A lane's context and the session's configuration, signed: `RestoreSession` makes a session of it."""

    token: str


class RestoreReceipt(Output):
    """A new session goes on from a checkpoint."""

    session_id: str


class HibernateReceipt(Output):
    """The session is in the archive whole, up to and with the entry `last_seq`."""

    last_seq: int


class CloseReceipt(Output):
    """The session has ended. It is in the archive whole, up to and with the entry `last_seq`.

    `last_seq` is -1 where it ended before it knew its archive, which stays as it was.
    """

    last_seq: int


class ForkReceipt(Output):
    """A session was forked: the new one begins with its entries up to and with `fork_seq`."""

    session_id: str
    fork_seq: int


class DeleteReceipt(Output):
    """A session was deleted; segments that its forks need stay and do not count."""

    deleted_segments: int


class Overflow(Output):
    """What does not fit into a context: a part of it, the tokens it needs, and those that are left for it."""

    part: str
    needed: int
    available: int


class ContextMeta(Output):
    """What is known of a projected context. Sizes are in tokens.

    `cut_tool_results` names the tool results that are shown in part: of each how many bytes of its beginning and of
    its end are shown, by the id of its tool call.

    `fits` and the fields after it are those of a preview alone. Where it does not fit there are no messages, and
    `estimated_tokens` is what the parts need up to and with the one in `overflow`. Costs are by list price, for
    `token_ratio` tokens of the provider to one counted here, nothing being cached; absent where the price is not
    known. `cost_usd_at_most` adds a reply of `max_output_tokens`.
    """

    basis_rev: int
    basis_last_seq: int
    pending_count: int
    truncated: bool
    estimated_tokens: int
    summary_used: bool
    needs_summary: bool
    entries_included: int
    entries_total: int
    policy_hash: str
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    cut_tool_results: dict[str, tuple[int, int]] | None = None
    digest: str
    fits: bool | None = None
    budget: int | None = None
    overflow: Overflow | None = None
    model: str | None = None
    max_output_tokens: int | None = None
    token_ratio: float | None = None
    input_cost_usd: float | None = None
    cost_usd_at_most: float | None = None


class Context(Output):
    """What a lane looks like to a model."""

    messages: list[Message]
    tool_spec: list[ToolSpec]
    meta: ContextMeta
    output_schema: dict[str, Any] | None = None


class Window(Output):
    """The newest messages of a lane that fit a budget."""

    messages: list[Message]
    meta: ContextMeta


class TranscriptMessage(Message):
    """A message with its place in the thread."""

    seq: int


class StreamState(Output):
    """A reply as it grows: the newest 32 KB of it, `offset` being the characters left out in front.

    A new `attempt` starts over. The committed message is the truth.
    """

    request_id: str
    run_id: str
    call_id: str
    attempt: int
    iteration: int
    offset: int = 0
    text: str = ""
    thinking: str | None = None
    tool_name: str | None = None
