"""The wire contract's other half: what a session answers. Outputs may gain optional fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from clew.model.messages import Message, ToolSpec
from clew.outcomes import Output, Usage


class SessionStatus(Output):
    """The answer to the query `status`.

    Attributes:
        session_id: The session.
        status: `preparing`, `idle`, `awaiting_model`, `awaiting_tools`, `awaiting_approval`, `summarizing`,
            `hibernating` or `closed`.
        active_context_ref: The lane that the next request is served in.
        request_id: The request that is served, or that comes next.
        run_id: The run in progress.
        iteration: Model calls that the run in progress has begun.
        rev: Entries that the thread has.
        projection_cursor_seq: The last seq that the active lane's context has folded in; -1 while there is none.
        pending_context_op: The `replace` or `switch` that waits for the run to end: `{op_id, type, reason,
            context_ref?}`.
        pending_operations: All context operations that wait for the run to end, in the same form, in order.
        pending_inputs: Inputs that the run in progress has not read yet.
        queued_messages: Requests that wait for the run to end.
        queued_request_ids: Their ids, the next one first.
        pending_config: The fields that a waiting `configure` sets.
        pending_approvals: The tool calls that wait for a person's decision: `{tool_call_id, name, arguments}`.
        usage: What all model calls of the session used.
        model: The model in force.
        config: The configuration in force: every field of `SessionConfig`, the policy complete.
        metadata: The session's metadata.
        first_live_seq: Entries before this seq are in the archive.
        closed: Whether the session has ended.
    """

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
    """An input was accepted.

    Attributes:
        input_id: The input's id: the sender's, or `input-<n>`.
        request_id: The request whose run reads it.
        position: Its place among the inputs that wait, from 1.
    """

    input_id: str
    request_id: str
    position: int


class OperationReceipt(Output):
    """A context operation was accepted.

    Attributes:
        op_id: The operation's id.
        status: `applied`, `deferred` to the end of the run, or `duplicate`: known already, nothing changed.
        seq: The entry, where it was applied.
    """

    op_id: str
    status: Literal["applied", "deferred", "duplicate"]
    seq: int | None = None


class ConfigureReceipt(Output):
    """A change of configuration was accepted.

    Attributes:
        seq: The `config` entry, where it was applied.
        status: `applied`, or `deferred` to the end of the run.
    """

    seq: int | None = None
    status: Literal["applied", "deferred"]


class SummaryReceipt(Output):
    """A summary was committed.

    Attributes:
        seq: The entry.
        from_seq: The first seq that was summed up now.
        to_seq: The summary stands for the lane up to this seq.
        tokens: The summary's tokens.
    """

    seq: int
    from_seq: int
    to_seq: int
    tokens: int


class CancelReceipt(Output):
    """A cancellation was accepted.

    Attributes:
        request_id: The request that it was about; empty where a summary was given up.
        cancelled: Whether there was something to cancel; false where the request had ended.
    """

    request_id: str
    cancelled: bool


class ApprovalReceipt(Output):
    """A tool call was decided upon.

    Attributes:
        tool_call_id: The call.
        decision: What was decided.
    """

    tool_call_id: str
    decision: Literal["approve", "deny"]


class CheckpointReceipt(Output):
    """A lane's context and the session's configuration, signed.

    Attributes:
        token: What `RestoreSession` makes a session of: `rt2.<payload>.<signature>`.
    """

    token: str


class RestoreReceipt(Output):
    """A new session goes on from a checkpoint.

    Attributes:
        session_id: The new session.
    """

    session_id: str


class HibernateReceipt(Output):
    """The whole session is in the archive; its workflow completes.

    Attributes:
        last_seq: The thread's last entry.
    """

    last_seq: int


class CloseReceipt(Output):
    """The session has ended, and all of it is in the archive.

    Attributes:
        last_seq: The thread's last entry; -1 where the session ended before it had read its archive, which stays as
            it was.
    """

    last_seq: int


class ForkReceipt(Output):
    """A session was forked.

    Attributes:
        session_id: The new session.
        fork_seq: The last entry that it shares with its parent.
    """

    session_id: str
    fork_seq: int


class DeleteReceipt(Output):
    """A session was deleted.

    Attributes:
        deleted_segments: Archive segments that were deleted; those that forks need stay and do not count.
    """

    deleted_segments: int


class Overflow(Output):
    """What does not fit into a context.

    Attributes:
        part: `system_prompt`, `tools`, `pending`, `request` or `tool_results`.
        needed: The tokens that the part needs.
        available: The tokens that are left for it.
    """

    part: str
    needed: int
    available: int


class ContextMeta(Output):
    """What is known of a projected context. Sizes are in tokens.

    `fits` and the fields after it are those of a preview alone.

    Attributes:
        basis_rev: Entries that the thread had.
        basis_last_seq: The last of them.
        pending_count: Messages that are shown beside the thread.
        truncated: Whether the window had to cut.
        estimated_tokens: The context with its tool schemas; of a preview that does not fit, what its parts need up
            to and with the one in `overflow`.
        summary_used: Whether a summary stands for earlier messages.
        needs_summary: Whether the policy says that a summary is due.
        entries_included: Entries that are shown.
        entries_total: Entries of the thread up to `basis_last_seq`.
        policy_hash: Names the policy in force.
        epoch: Where an epoch's window begins. Of two windows that agree in it the earlier is a prefix of the later.
        shared_prefix_tokens: Tokens at the beginning that the call before had too, to the byte.
        cleared_tool_results: Tool results that a marker stands for.
        cut_tool_results: Tool results that are shown in part, by tool call: bytes of the beginning and of the end
            that are shown.
        digest: SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}`.
        fits: Whether the context can be made; where it cannot, there are no messages.
        budget: Tokens that a context may have under the policy.
        overflow: What does not fit.
        model: The model that would be called.
        max_output_tokens: The longest reply that would be asked for.
        token_ratio: The provider's tokens to one counted here, where it counts more.
        input_cost_usd: What the prompt costs by list price with nothing cached; absent where the price is not known.
        cost_usd_at_most: The same, and a reply of `max_output_tokens`.
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
    """What a lane looks like to a model.

    Attributes:
        messages: The messages, the system prompt first.
        tool_spec: The tool schemas; on the first page.
        meta: How the context came about.
        output_schema: What the answer must look like, where the call asked for that; on the first page.
    """

    messages: list[Message]
    tool_spec: list[ToolSpec]
    meta: ContextMeta
    output_schema: dict[str, Any] | None = None


class ContextPage(Context):
    """One page of a context: the answer to the query `context` and of the workflow `ReadContext`.

    Attributes:
        next_page: What to ask for as `page` to get the next one, together with `at_seq`.
        at_seq: The seq that the next page is asked for at, so that all pages are of one context.
    """

    next_page: int | None = None
    at_seq: int | None = None


class Window(Output):
    """The newest messages of a lane that fit a budget.

    Attributes:
        messages: The messages.
        meta: How the window came about.
    """

    messages: list[Message]
    meta: ContextMeta


class TranscriptMessage(Message):
    """A message with its place in the thread.

    Attributes:
        seq: The entry.
    """

    seq: int


class TranscriptPage(Output):
    """One page of a lane's messages: the answer to the query `transcript`.

    Attributes:
        messages: The messages as they were said, oldest first.
        next_seq: The `from_seq` of the next page, where there is one.
        archived_before: Messages before this seq are in the archive; absent where none was asked for.
    """

    messages: list[TranscriptMessage]
    next_seq: int | None = None
    archived_before: int | None = None


class EntriesPage(Output):
    """One page of a thread: the answer to the query `entries` and of the workflow `ReadThread`.

    Attributes:
        entries: The entries that meet the filters, in ascending order. A page of `ReadThread` may be empty and
            have a `next_seq`.
        next_seq: The `from_seq` of the next page, where there is one.
        archived_before: Entries before this seq are in the archive; absent where none was asked for, and from
            `ReadThread`.
    """

    entries: list[dict[str, Any]]
    next_seq: int | None = None
    archived_before: int | None = None


class SessionEnd(Output):
    """The result of the workflow `AgentSession`.

    Attributes:
        last_seq: The thread's last entry.
    """

    last_seq: int


class StreamState(Output):
    """A reply as it grows. The committed message is the truth.

    Attributes:
        request_id: The request.
        run_id: The run.
        call_id: The model call.
        attempt: Counts from 1; a new attempt starts over.
        iteration: The number of the model call in its run.
        offset: Characters of the reply that are left out in front.
        text: The newest 32 768 characters of the reply.
        thinking: The same of what the model thinks, where the provider sends that.
        tool_name: The tool whose call the model is writing.
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
