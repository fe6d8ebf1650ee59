"""The answers of a session to queries and updates, and the results of workflows. They may gain optional fields."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import Field

from clew_workflows.contract.content import Blob
from clew_workflows.contract.messages import Citation, Message, ProviderCall, ToolSpec
from clew_workflows.contract.outcomes import Output, RequestOutcome, Usage
from clew_workflows.contract.payloads import AgentVersion

# Answers to queries.


class PendingOperation(Output):
    """A context operation that waits for the run to end.

    Attributes:
        op_id: The operation's id.
        type: The operation's name: `replace`, `switch`, `pin`, `unpin` or `expand`.
        reason: The origin of the operation.
        context_ref: The lane; absent: the active lane.
    """

    op_id: str
    type: str
    reason: str
    context_ref: str | None = None


class PendingCall(Output):
    """A tool call that runs, or that waits for a person's decision.

    Attributes:
        tool_call_id: The call.
        name: The tool.
        arguments: The model's arguments.
    """

    tool_call_id: str
    name: str
    arguments: dict[str, Any]


class PendingExternalCall(PendingCall):
    """An external tool call that waits for its result.

    Attributes:
        expires_at: When the call times out: ISO 8601 in UTC with milliseconds.
    """

    expires_at: str


class OpenSubagent(Output):
    """A subagent that a session has started and that has not reported its result.

    Attributes:
        tool_call_id: The tool call that started it.
        agent: Its agent.
        session_id: Its session.
        status: `starting`, `working`, or `cancelled`: its call has ended without it.
    """

    tool_call_id: str
    agent: str
    session_id: str
    status: Literal["starting", "working", "cancelled"]


class ParentSession(Output):
    """The session that has started this one as its subagent.

    Attributes:
        session_id: The session.
        tool_call_id: Its tool call.
        depth: The number of sessions above this one.
    """

    session_id: str
    tool_call_id: str
    depth: int


class SessionStatus(Output):
    """The answer to the query `status`.

    Attributes:
        session_id: The session.
        status: `preparing`, `idle`, `checking` (hooks check a message, tool calls or an answer), `awaiting_model`,
            `stopping` (a run ends as soon as its model call has stopped), `awaiting_tools`, `awaiting_approval`,
            `awaiting_external`, `summarizing`, `hibernating`, `hibernated` or `closed`. The Python client says
            `interrupted` of a session whose workflow was terminated or has timed out.
        active_context_ref: The lane that the next request is served in.
        request_id: The request that the session serves, or serves next.
        run_id: The run in progress.
        iteration: Model calls that the run in progress has begun.
        rev: Entries that the thread has; of a session that has ended, those of its end. Forks and a recovery add more
            to its archive.
        projection_cursor_seq: The last seq that the active lane's context includes; -1: none.
        pending_context_op: The `replace` or `switch` that waits for the run to end.
        pending_operations: All context operations that wait for the run to end, in order.
        pending_inputs: Inputs that the run in progress has not read yet.
        queued_messages: Requests that wait for the run to end.
        queued_request_ids: The ids of those requests, the next one first.
        pending_config: The fields that a waiting `configure` sets.
        pending_approvals: The tool calls that wait for a person's decision.
        pending_external_calls: The external tool calls that wait for their results.
        subagents: The subagents that work for the session.
        parent: The session that has started this one as its subagent.
        usage: The usage of all model calls of the session.
        subagent_usage: The usage of the session's subagents, and of theirs.
        agent: The agent as a worker has resolved it.
        model: The model in force; empty until a worker has resolved the agent whose model it is.
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
    pending_context_op: PendingOperation | None = None
    pending_operations: list[PendingOperation] = Field(default_factory=list)
    pending_inputs: int = 0
    queued_messages: int = 0
    queued_request_ids: list[str] = Field(default_factory=list)
    pending_config: list[str] = Field(default_factory=list)
    pending_approvals: list[PendingCall] = Field(default_factory=list)
    pending_external_calls: list[PendingExternalCall] = Field(default_factory=list)
    subagents: list[OpenSubagent] = Field(default_factory=list)
    parent: ParentSession | None = None
    usage: Usage = Usage()
    subagent_usage: Usage | None = None
    agent: AgentVersion | None = None
    model: str
    config: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)
    first_live_seq: int = 0
    closed: bool = False


class Overflow(Output):
    """The part of a context that does not fit.

    Attributes:
        part: `system_prompt`, `tools`, `pending`, `request` or `tool_results`.
        needed: The tokens that the part needs.
        available: The tokens that are left for the part.
    """

    part: str
    needed: int
    available: int


class ContextMeta(Output):
    """Properties of a projected context. Sizes are in tokens.

    Only previews have `fits` and the fields after it.

    Attributes:
        basis_rev: Entries of the thread.
        basis_last_seq: The last entry of the thread.
        pending_count: Messages of the context that are not in the thread.
        truncated: Whether the window was truncated.
        estimated_tokens: Tokens of the context with its tool schemas; of a preview that does not fit, those of its
            parts up to the one in `overflow`, which is included.
        summary_used: Whether a summary replaces earlier messages.
        needs_summary: Whether a summary is due under the policy.
        entries_included: Entries that the context has.
        entries_total: Entries of the thread up to `basis_last_seq`.
        policy_hash: The hash of the policy in force.
        epoch: The seqs at which the window of an epoch was truncated. Of two windows with the same ones, the earlier
            is a prefix of the later.
        shared_prefix_tokens: Tokens at the beginning that are equal, to the byte, to those of the call before.
        cleared_tool_results: Tool results that a marker replaces.
        cleared_media: Images, recordings and files that markers replace.
        truncated_tool_results: Tool results that were truncated, by the id of the tool call: the bytes that are left
            of the beginning and of the end.
        digest: SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}`.
        fits: Whether the context fits; if not, there are no messages.
        budget: The most tokens of a context under the policy.
        overflow: The part that does not fit.
        model: The model that would be called.
        max_output_tokens: The longest reply of that call, in tokens.
        token_ratio: The ratio of the provider's tokens to those counted here, if it is larger than 1.
        input_cost_usd: The cost of the prompt by list price with nothing cached; absent if the price is unknown.
        cost_usd_at_most: The cost of the prompt and of a reply of `max_output_tokens`.
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
    cleared_media: int | None = None
    truncated_tool_results: dict[str, tuple[int, int]] | None = None
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
    """The context of a lane.

    Attributes:
        messages: The messages, the system prompt first.
        tool_spec: The tool schemas; on the first page.
        meta: Properties of the context.
        output_schema: The JSON Schema that the answer must follow, if the call has one; on the first page.
    """

    messages: list[Message]
    tool_spec: list[ToolSpec]
    meta: ContextMeta
    output_schema: dict[str, Any] | None = None


class ContextPage(Context):
    """One page of a context: the answer to the query `context` and of the workflow `ReadContext`.

    Attributes:
        next_page: The `page` of the next page, where there is one.
        at_seq: The `at_seq` of the next page, so that all pages are of one context.
    """

    next_page: int | None = None
    at_seq: int | None = None


class Window(Output):
    """The newest messages of a lane that fit a budget.

    Attributes:
        messages: The messages.
        meta: Properties of the window.
    """

    messages: list[Message]
    meta: ContextMeta


class TranscriptMessage(Message):
    """A message with its seq.

    Attributes:
        seq: The entry.
        refs: The caller's own refs of the message.
        provider_calls: The calls of tools that the provider ran itself for a reply.
        citations: The sources that a reply names.
    """

    seq: int
    refs: NotRequired[dict[str, str]]
    provider_calls: NotRequired[list[ProviderCall]]
    citations: NotRequired[list[Citation]]


class TranscriptPage(Output):
    """One page of a lane's messages: the answer to the query `transcript`.

    Attributes:
        messages: The messages as they were committed, oldest first.
        next_seq: The `from_seq` of the next page, where there is one.
        archived_before: Messages before this seq are in the archive; absent if the page begins later.
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
        archived_before: Entries before this seq are in the archive; absent if the page begins later, and from
            `ReadThread`.
        not_found: There is no such session: the message for people; only from `ReadThread`.
    """

    entries: list[dict[str, Any]]
    next_seq: int | None = None
    archived_before: int | None = None
    not_found: str | None = None


class LiveStatus(Output):
    """The part of a session's status that viewers follow.

    Attributes:
        rev: Entries that the thread has.
        status: As in `SessionStatus`.
        request_id: The request that the session serves, or serves next.
        run_id: The run in progress.
        call_id: The model call that the session waits for.
        iteration: Model calls that the run in progress has begun.
        unfinished_request_ids: The requests that have no outcome yet: those of the run, and those that wait.
        running_calls: The tool calls that run.
        pending_approvals: The tool calls that wait for a person's decision.
        pending_external_calls: The external tool calls that wait for their results.
    """

    rev: int
    status: str
    request_id: str | None = None
    run_id: str | None = None
    call_id: str | None = None
    iteration: int = 0
    unfinished_request_ids: tuple[str, ...] = ()
    running_calls: tuple[PendingCall, ...] = ()
    pending_approvals: tuple[PendingCall, ...] = ()
    pending_external_calls: tuple[PendingExternalCall, ...] = ()


class FollowPage(EntriesPage):
    """New entries and the status after them: the answer to the query `follow`.

    Attributes:
        status: The status; on the last page.
    """

    status: LiveStatus | None = None


class SessionEnd(Output):
    """The result of the workflow `AgentSession`.

    Attributes:
        last_seq: The thread's last entry.
    """

    last_seq: int


class ToolProgress(Output):
    """A call of a function that runs, with the progress that it has reported.

    Attributes:
        request_id: The request.
        run_id: The run.
        call_id: The model call that called the tool.
        iteration: The number of the model call in its run.
        tool_call_id: The tool call.
        name: The tool.
        text: The newest report; null: there is none yet.
        fraction: The part of the work that is done, from 0 to 1, if the tool has reported it.
    """

    request_id: str
    run_id: str
    call_id: str
    iteration: int
    tool_call_id: str
    name: str
    text: str | None = None
    fraction: float | None = None


class ReplyProgress(Output):
    """A reply while the model writes it. The committed message may differ.

    Attributes:
        request_id: The request.
        run_id: The run.
        call_id: The model call.
        attempt: The number of the attempt, from 1 on; a new attempt starts the reply over.
        iteration: The number of the model call in its run.
        offset: Characters of the reply before `text`.
        text: The newest 32 768 characters of the reply.
        thinking_offset: Characters of the reasoning before `thinking`.
        thinking: The newest 32 768 characters of the model's reasoning, if the provider sends it.
        tool_name: The tool whose call the model is writing.
    """

    request_id: str
    run_id: str
    call_id: str
    attempt: int
    iteration: int
    offset: int = 0
    text: str = ""
    thinking_offset: int = 0
    thinking: str | None = None
    tool_name: str | None = None


# Answers to updates, and results of the service workflows.


class InputReceipt(Output):
    """An input was accepted.

    Attributes:
        input_id: The input's id: the sender's, or `input-<n>`.
        request_id: The request whose run reads it.
        position: The position of the input among those that wait, from 1.
    """

    input_id: str
    request_id: str
    position: int


class OperationReceipt(Output):
    """A context operation was accepted.

    Attributes:
        op_id: The operation's id.
        status: `applied`, `deferred` to the end of the run, or `duplicate`: the id is known, nothing changed.
        seq: The operation's entry, if it was applied.
    """

    op_id: str
    status: Literal["applied", "deferred", "duplicate"]
    seq: int | None = None


class ConfigureReceipt(Output):
    """A change of configuration was accepted.

    Attributes:
        seq: The `config` entry, if the change was applied.
        status: `applied`, or `deferred` to the end of the run.
    """

    seq: int | None = None
    status: Literal["applied", "deferred"]


class SummaryReceipt(Output):
    """A summary was committed.

    Attributes:
        seq: The entry.
        from_seq: The first entry that the model read; the summary before covers earlier ones.
        to_seq: The last entry that the summary covers.
        tokens: Tokens of the summary.
    """

    seq: int
    from_seq: int
    to_seq: int
    tokens: int


class CancelReceipt(Output):
    """A cancellation was accepted.

    Attributes:
        request_id: The cancelled request; empty if a summary was cancelled.
        cancelled: Whether the request was cancelled; false if it had ended.
    """

    request_id: str
    cancelled: bool


class ApprovalReceipt(Output):
    """A decision about a tool call was accepted.

    Attributes:
        tool_call_id: The call.
        decision: The decision.
    """

    tool_call_id: str
    decision: Literal["approve", "deny"]


class ToolResultReceipt(Output):
    """The result of an external tool call was accepted.

    Attributes:
        tool_call_id: The call.
        seq: The result's entry.
    """

    tool_call_id: str
    seq: int


class CheckpointReceipt(Output):
    """A lane's context and the session's configuration, signed.

    Attributes:
        token: The argument of `RestoreSession`: `rt2.<payload>.<signature>`.
    """

    token: str


class RestoreReceipt(Output):
    """A session was made from a checkpoint.

    Attributes:
        session_id: The new session.
    """

    session_id: str


class HibernateReceipt(Output):
    """The complete session is in the archive; its workflow completes.

    Attributes:
        last_seq: The thread's last entry.
    """

    last_seq: int


class CloseReceipt(Output):
    """The session has ended, and the archive has all of it.

    Attributes:
        last_seq: The thread's last entry; -1 if the session ended before it had read its archive, which is unchanged.
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


class BlobReceipt(Output):
    """A chunk was stored, or an upload was finished.

    Attributes:
        blob: The description of the blob, which a part of a message names; absent: the blob is not complete.
    """

    blob: Blob | None = None


class UploadReceipt(Output):
    """A URL of the store was signed. `FinishUpload` makes a blob of what is uploaded to it.

    Attributes:
        upload_id: The upload.
        url: The URL. It takes the bytes of this upload, and opens nothing else. It is a secret until it expires.
        method: The method of the HTTP request whose body has the bytes.
        headers: The headers that the request must have.
        expires_at: When the URL expires, and until when the upload can be finished: RFC 3339 in UTC.
        object_name: The name under which the bytes are to be encrypted; absent: they are uploaded as they are.
    """

    upload_id: str
    url: str
    method: Literal["PUT"] = "PUT"
    headers: dict[str, str] = Field(default_factory=dict)
    expires_at: str
    object_name: str | None = None


class BlobPage(Output):
    """A page of the bytes of a blob.

    Attributes:
        blob: The description of the blob, without a name: messages name it.
        data: The bytes of the page in base64.
        next_offset: The `offset` of the next page; absent: there is none.
    """

    blob: Blob
    data: str
    next_offset: int | None = None


class DeleteReceipt(Output):
    """A session was deleted.

    Attributes:
        deleted_segments: Archive segments that were deleted, without those that forks still need.
        deleted_subagents: Sessions of subagents that were deleted with the session.
    """

    deleted_segments: int
    deleted_subagents: int = 0


class SendMessageReceipt(Output):
    """A message was sent, and its request has completed: the answer of the workflow `SendMessage`.

    Attributes:
        session_id: The session.
        request_id: The request.
        outcome: The outcome of the request.
    """

    session_id: str
    request_id: str
    outcome: RequestOutcome


Receipt = (
    InputReceipt
    | OperationReceipt
    | ConfigureReceipt
    | SummaryReceipt
    | CancelReceipt
    | ApprovalReceipt
    | ToolResultReceipt
    | CheckpointReceipt
    | RestoreReceipt
    | HibernateReceipt
    | CloseReceipt
    | ForkReceipt
    | DeleteReceipt
)
"""A receipt of a session or of a service workflow."""
