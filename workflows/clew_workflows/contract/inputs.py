"""The arguments of updates, signals, queries and service workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from clew_workflows.contract.config import (
    ExternalTools,
    Fallbacks,
    Iterations,
    ModelOptions,
    OnBusy,
    RequestSeconds,
    SessionConfig,
    Steering,
    ToolNames,
)
from clew_workflows.contract.content import BlobName, Digest, MediaType
from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_PENDING,
    MAX_UPLOAD_SECONDS,
    UPLOAD_SECONDS,
)
from clew_workflows.contract.names import AgentName, Id, Metadata, ModelName, OwnRefs, Seq, SessionId
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import StoredResult
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.validation import (
    INVALID_OPERATION,
    Input,
    MessageContent,
    ResultContent,
    validate_schema,
)

# Messages, and inputs of a run.


OutputSchema = Annotated[dict[str, Any], AfterValidator(validate_schema)]
"""A JSON Schema (draft 2020-12) within the bounds of `clew_workflows.contract.schemas`."""


class SnapshotToolCall(Input):
    """A tool call within a snapshot or the replies of a message.

    Attributes:
        id: The call's id, unique among them; the call's result names it.
        name: The tool.
        arguments: The arguments of the call.
    """

    id: Annotated[
        str, Form(r"^[A-Za-z0-9_-]{1,40}$", "the id of a call in a snapshot has 1 to 40 letters, digits, '_' and '-'")
    ]
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: dict[str, Any]


class SnapshotProviderData(Input):
    """The part of a snapshot's message that goes back to its provider as it came.

    Attributes:
        provider: The provider; no other one gets it.
        blocks: The content blocks, or the fields of the message, as the provider sent them.
        calls: What the provider sent with each tool call of the message, in order.
        model: The model that sent it; absent: any model of the provider takes it back.
    """

    provider: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    blocks: list[dict[str, Any]]
    calls: list[dict[str, Any]] | None = None
    model: Annotated[str, StringConstraints(max_length=200)] | None = None


class SnapshotMessage(Input):
    """A message of a snapshot or of the replies of a message, in the form of contexts.

    Attributes:
        role: The speaker; a snapshot has its `system_prompt` beside the messages.
        content: The text, or parts.
        tool_calls: The tool calls of an assistant message.
        tool_call_id: The call that a tool message answers.
        name: The tool of a tool message.
        provider_data: Blocks that go back to the provider with the message.
        refs: Refs of a caller's own. No model reads them.
    """

    role: Literal["user", "assistant", "tool"]
    content: MessageContent
    tool_calls: tuple[SnapshotToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    provider_data: SnapshotProviderData | None = None
    refs: OwnRefs | None = None


class MessageInput(Input):
    """The argument of the update `message`.

    While a request is active, `on_busy` decides. `reject`: the message is refused with `busy`. `queue`: it waits for
    its turn. `interrupt`: the active run is cancelled, and the message is next. `steer`: the message joins the active
    run under its own id, and both requests get the outcome; settings for the run are refused with `invalid_input`.

    When more than 6 callers of a session wait, the one that has waited for 60 seconds or longer, or else the newest,
    gets the outcome `running`, and asks again with `await_request`. The same happens when the session rolls over.

    An `output_schema` has at most 131 072 bytes, 64 levels, 3 000 subschemas and 1 000 that apply to one value with
    every `$ref` followed. `$anchor`, `$dynamicRef`, `unevaluatedProperties` and similar keywords are refused. The
    answer's text is JSON that meets it. An answer that does not meet it is followed by a message from `repair`, three
    times at most; then the request fails with `invalid_output`. The operation `corrected` takes corrections out of
    later contexts.

    Before the first call of a `model` that is new to the session, the session asks a worker about it, once for each
    of the newest 16 models. A policy that does not fit the model fails the request, or has the message refused where
    the session knows the model.

    Attributes:
        content: The text of the user, or parts. Leading and trailing white space is removed. Blobs that parts name
            are stored before.
        request_id: The request's id: each is served once. Absent: the id of the Update, which has the same
            bounds. Ids that begin with `followup:` are reserved.
        on_busy: How the session treats the message while it serves a request; absent: the session's setting.
        context_policy: Overlays the session's policy for this request, or the one that comes with `model`.
        model: The model of this request. The policy that the worker chooses for the model comes with it, unless the
            session was started with a policy.
        fallbacks: The models that this request tries while its model has an outage, instead of the session's; `[]`:
            none.
        model_options: Overlay the session's options for this request.
        shortens_only: Whether `max_output_tokens` may make replies shorter than the session's, and not longer.
            `clew serve` sets it for keys with `agents`.
        max_iterations: The most model calls of the run.
        timeout_seconds: The request fails with `timeout` after this many seconds.
        output_schema: The JSON Schema that the answer must follow (draft 2020-12, within bounds).
        tools: The tools of this request: some of the session's, by the names that models read; `[]`: none.
            `read_result` and `view_blob` stay beside others.
        external_tools: The caller's tools of this request, instead of the session's `external_tools`; `[]`: none.
        replies: What was answered to the content elsewhere, in order: replies of an assistant, with the results of
            their tool calls right after them. The run goes on behind them.
        metadata: The caller's own names and values; the message's entry has them.
        refs: The caller's own refs, such as the message's id in another system. The entry and transcripts have
            them; no model reads them.
    """

    content: MessageContent
    request_id: Id | None = None
    on_busy: OnBusy | None = None
    context_policy: ContextPolicy | None = None
    model: ModelName | None = None
    fallbacks: Fallbacks | None = None
    model_options: ModelOptions | None = None
    shortens_only: bool | None = None
    max_iterations: Iterations | None = None
    timeout_seconds: RequestSeconds | None = None
    output_schema: OutputSchema | None = None
    tools: ToolNames | None = None
    external_tools: ExternalTools | None = None
    replies: tuple[SnapshotMessage, ...] | None = None
    metadata: Metadata | None = None
    refs: OwnRefs | None = None

    @model_validator(mode="after")
    def _check_replies(self) -> Self:
        replies = self.replies or ()
        if any(message.role == "user" for message in replies):
            raise _make_error("replies are of the roles assistant and tool: the message is the user's")
        _check_messages(replies)
        return self


class RunSettings(Input):
    """Settings of a run from its next model call on, instead of those that its message had.

    An absent field has the session's value again. They belong to the run: the session keeps its configuration, but
    for `agent`.

    Attributes:
        agent: The agent that goes on with the request. The session has it from then on.
        model: The model.
        model_options: Overlay the session's options.
        shortens_only: Whether `max_output_tokens` may make replies shorter than the session's, and not longer.
        context_policy: Overlays the session's policy, or the one that comes with `model`.
        output_schema: The JSON Schema that the answer must follow (draft 2020-12, within bounds).
        external_tools: The caller's tools, instead of the session's `external_tools`; `[]`: none.
        metadata: The caller's own names and values; the entry of the result or decision has them.
    """

    agent: AgentName | None = None
    model: ModelName | None = None
    model_options: ModelOptions | None = None
    shortens_only: bool | None = None
    context_policy: ContextPolicy | None = None
    output_schema: OutputSchema | None = None
    external_tools: ExternalTools | None = None
    metadata: Metadata | None = None


InputKind = Literal["steer", "inject"]


class SteerInput(Input):
    """The argument of the signals `steer` and `inject`: a message for the run in progress.

    Attributes:
        content: The text, or parts; leading and trailing white space is removed.
        at: When the input enters the run: with its answer (`terminal`) or before its next model call (`step`);
            absent: the session's `steering`.
        input_id: The input's id: each is accepted once. Absent: the id of the Update, which has the same bounds; a
            signal's input is `input-<n>`. Ids of that form are reserved.
        expected_request_id: Refuse the input unless this request is running.
        on_failure: If the run fails, or reaches its most iterations, before it reads the input: a follow-up run
            answers the input (`follow_up`), or it is dropped (`drop`).
        source: The sender of the input; absent: `steer` or `inject`.
        refs: The caller's own refs. The entry and transcripts have them; no model reads them.
    """

    content: MessageContent
    at: Steering | None = None
    input_id: Id | None = None
    expected_request_id: Id | None = None
    on_failure: Literal["follow_up", "drop"] = "follow_up"
    source: Id | None = None
    refs: OwnRefs | None = None


class SubmitInput(SteerInput):
    """The argument of the update `submit_input`.

    Attributes:
        kind: `steer`: the input is from the user; `inject`: it is from a program.
    """

    kind: InputKind


# Context operations. To add one, write its class and add it to `Operation`. The session's refusals are in
# `clew_workflows.session.operations`, the effect on a lane's contexts in `clew_workflows.thread.lane`.


class Snapshot(Input):
    """A context that `replace` puts under a lane. Its tool results follow right after their calls.

    Attributes:
        messages: The messages, oldest first.
        system_prompt: The lane's system prompt from then on; absent: the session's.
    """

    messages: tuple[SnapshotMessage, ...]
    system_prompt: str | None = None

    @model_validator(mode="after")
    def _check_tool_results(self) -> Self:
        _check_messages(self.messages)
        return self


class _Operation(Input):
    """The fields of every operation.

    Attributes:
        type: Names the operation.
        reason: The origin of the operation. A `replace` for a `compaction` can be undone by `expand`.
        meta: JSON for the operation's entry.
    """

    supersedes: ClassVar[bool] = False
    """Whether, of all such operations that wait for a run to end, only the latest is applied."""

    reason: Literal["manual", "restore", "compaction", "system"] = "manual"
    meta: dict[str, Any] | None = None


class Replace(_Operation):
    """Put a snapshot under a lane.

    It creates a lane that does not exist. With the reason `compaction` and no `result_context` the session writes the
    snapshot: an idle session answers when it is applied, or with the error that prevented it; during a run the answer
    is `deferred`. The snapshot's tool calls get new ids (`then-…`).

    Attributes:
        result_context: The snapshot. Absent: the session writes it; only for a `compaction`.
        base_seq: The lane's messages after this seq stay; absent: none stay.
    """

    supersedes: ClassVar[bool] = True

    type: Literal["replace"]
    result_context: Snapshot | None = None
    base_seq: Seq | None = None

    @property
    def written_by_session(self) -> bool:
        """Whether the session writes the snapshot."""
        return self.result_context is None

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if self.result_context is None and self.reason != "compaction":
            raise _make_error(
                "replace needs result_context, the context that it puts under the lane; with the reason 'compaction' "
                "it may be left out, and the session writes it"
            )
        return self


class Switch(_Operation):
    """Make the lane that the operation names the active one.

    It creates a lane that does not exist.
    """

    supersedes: ClassVar[bool] = True

    type: Literal["switch"]


class Pin(_Operation):
    """Keep messages of a lane verbatim in all its contexts.

    At most 64 messages of a lane are pinned, with at most half of the budget; more are refused with
    `invalid_operation`.

    Attributes:
        seqs: The seqs of the messages.
    """

    type: Literal["pin"]
    seqs: list[Seq] = Field(min_length=1)


class Unpin(_Operation):
    """Unpin messages of a lane.

    Attributes:
        seqs: The seqs of the messages.
    """

    type: Literal["unpin"]
    seqs: list[Seq] = Field(min_length=1)


class Expand(_Operation):
    """Undo a lane's latest compaction.

    It removes the lane's topmost layer: a summary, or the snapshot of a `replace` with the reason `compaction`.
    """

    type: Literal["expand"]


Operation = Annotated[Replace | Switch | Pin | Unpin | Expand, Field(discriminator="type")]
"""A context operation, by its `type`."""


class ContextOperation(Input):
    """The argument of `submit_context_operation` and `modify_context`.

    An operation is applied at once if no request is active, and else when the run ends. Of the `replace` and `switch`
    operations that wait only the newest is applied; the others leave an `input` entry (`superseded`). `pin`, `unpin`
    and `expand` are applied in their order.

    Attributes:
        op_id: The operation's id: each is applied once.
        context_ref: The lane; absent: the one that is active when the session accepts the operation. A `switch` names
            it.
        operation: The operation.
    """

    op_id: Id
    context_ref: Id | None = None
    operation: Operation

    @model_validator(mode="after")
    def _check_switch(self) -> Self:
        if isinstance(self.operation, Switch) and self.context_ref is None:
            raise _make_error("switch needs context_ref, the lane to make active")
        return self


def _make_error(reason: str) -> PydanticCustomError:
    return PydanticCustomError(INVALID_OPERATION, "{reason}", {"reason": reason})


def _check_messages(messages: Sequence[SnapshotMessage]) -> None:
    """Check that every provider accepts the messages: each call has one result, right after it."""
    open_calls: set[str] = set()
    known_calls: set[str] = set()
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        if message.provider_data and message.role != "assistant":
            raise _make_error(f"{path}: only messages of the assistant have provider_data")
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise _make_error(f"{path}: a tool result needs its tool call right before it")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise _make_error(f"{path}: the tool calls before it need their results first")
        if message.tool_calls and message.role != "assistant":
            raise _make_error(f"{path}: only an assistant calls tools")
        calls = [call.id for call in message.tool_calls or ()]
        open_calls = set(calls)
        if len(open_calls) < len(calls) or open_calls & known_calls:
            raise _make_error(f"{path}: a tool call's id is used twice")
        known_calls |= open_calls
    if open_calls:
        raise _make_error("messages end within tool calls: each needs its result")


# The other updates and signals.


class CancelInput(Input):
    """The argument of the update `cancel_request` and of the signal `cancel`.

    The answer comes at once. If a reply is being streamed, the run ends when its worker has stopped and said what it
    had read: within half a second, or within 8 seconds if the worker is lost. Until then `status` is `stopping`, and
    other updates and signals wait. To cancel a request that joined a run cancels the run.

    Attributes:
        request_id: The request; absent: the one that is running, or the summary that is being written.
        reason: For people; the outcome and the thread have it.
        inputs: Whether inputs that the run has not read are dropped, or a follow-up run answers them.
    """

    request_id: Id | None = None
    reason: str | None = Field(default=None, max_length=2000)
    inputs: Literal["drop", "follow_up"] = "drop"


class ApprovalInput(Input):
    """The argument of the update `resolve_approval`.

    An approved call runs at once, beside the other calls of its reply. With `approval_scope` or `requires_approval`
    as `round`, all calls of the reply wait for the last decision. Where hooks check calls, an approved call waits
    until the calls that run have returned. Edited arguments over the bound are refused with `too_large`, and the call
    still waits.

    Attributes:
        tool_call_id: The call.
        decision: Whether the tool may run.
        reason: For people; the model reads it if the call is denied.
        by: The person that decided, as the caller says: a name or an id. The entry has it, and no model reads it.
        arguments: The arguments that replace the model's; only with `approve`. Those of one reply's calls have at
            most 524 288 bytes together.
        settings: Settings of the run from its next model call on; absent: it goes on with those that it has.
    """

    tool_call_id: Id
    decision: Literal["approve", "deny"]
    reason: str | None = Field(default=None, max_length=2000)
    by: Id | None = None
    arguments: dict[str, Any] | None = None
    settings: RunSettings | None = None


class ToolResultInput(Input):
    """The argument of the update `submit_tool_result`.

    A call waits from the moment when its round of calls begins, or from its approval, until its result comes or its
    tool's time is over. While only such calls are open, `status` is `awaiting_external` and the request's time stands
    still. A result counts once: a repetition is refused with `already_answered`, a result after the end of the call
    with `call_ended`. The ids of the newest 128 answered calls are remembered.

    Attributes:
        tool_call_id: The external call that waits.
        content: The result: a text; a list of parts, at least one of which is an image, a recording or a file; or any
            other JSON value, whose JSON text the model reads. The texts have at most `max_tool_result_bytes`. The
            session has the blobs of parts already: `PutBlob` stores them.
        is_error: Whether the result describes a failure.
        by: The person or program that answers, as the caller says: a name or an id. The entry has it, and no model
            reads it.
        settings: Settings of the run from its next model call on; absent: it goes on with those that it has.
    """

    tool_call_id: Id
    content: Any
    is_error: bool = False
    by: Id | None = None
    settings: RunSettings | None = None


class LateResultInput(Input):
    """The argument of the signal `late_result`, by which a tool's worker answers a call whose run has ended.

    Attributes:
        tool_call_id: The call, whose result in the thread is in doubt.
        content: The result, or its parts; of a large text the part that a message has.
        result: Where the full result is stored, if `content` has a part of it.
        is_error: Whether the result describes a failure.
    """

    tool_call_id: Id
    content: ResultContent
    result: StoredResult | None = None
    is_error: bool = False


class AwaitRequestInput(Input):
    """The argument of the update `await_request`.

    Attributes:
        request_id: The request.
    """

    request_id: Id


class CheckpointInput(Input):
    """The argument of the update `checkpoint`.

    Attributes:
        context_ref: The lane; absent: the active one.
        expires_seconds: The token expires after this many seconds; 30 days by default.
    """

    context_ref: Id | None = None
    expires_seconds: int = Field(default=30 * 86400, ge=1, le=3650 * 86400)


class SummarizeInput(Input):
    """The argument of the update `summarize`.

    A summary covers everything up to its `to_seq`: it builds on the summary before.

    It may also be refused with an error type of the call that writes the summary, with `cancelled` if a message
    interrupted it, and with `busy` while the session rolls over. An empty range, or one before the summary in force,
    is `invalid_input`.

    A summary ends before a round of tool calls of which one may still return after the end of its run. If nothing
    comes before that round, the refusal is `nothing_to_summarize`.

    Attributes:
        context_ref: The lane; absent: the active one.
        from_seq: Begin at this entry, also if the summary in force already covers it.
        to_seq: End at this entry, or at the last result of the tool calls that it belongs to. Absent: before the last
            turns that the policy keeps.
    """

    context_ref: Id | None = None
    from_seq: Seq | None = None
    to_seq: Seq | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.from_seq is not None and self.to_seq is not None and self.to_seq < self.from_seq:
            raise ValueError(f"to_seq ({self.to_seq}) must not be before from_seq ({self.from_seq})")
        return self


class HibernateInput(Input):
    """The argument of the update `hibernate`.

    It is refused with `busy` while a request runs or waits, and while a tool call of an ended run may still return:
    its result would be lost.

    Attributes:
        reason: For people; the thread has it.
    """

    reason: str | None = Field(default=None, max_length=2000)


class CloseInput(Input):
    """The argument of the update `close_session` and of the signal `close`.

    It cancels all requests, archives all entries and completes the workflow. If the archive cannot be written in
    time, the answer is `archive_unavailable`: the session is closed, and ends once the archive is available. Send the
    update again to wait for that.

    Attributes:
        reason: For people; the thread has it.
    """

    reason: str | None = Field(default=None, max_length=2000)


class MoveInput(Input):
    """The argument of the signal `move`, which wakes a session after a deployment of workers with a version."""


class ForkedInput(Input):
    """The argument of the signal `forked`, which Clew sends to a session that was forked.

    Attributes:
        session_id: The fork.
        fork_seq: The last entry that both have.
        metadata: The metadata of the fork.
    """

    session_id: SessionId
    fork_seq: Seq
    metadata: Metadata | None = None


class SubagentResultInput(Input):
    """The argument of the signal `subagent_result`, which a subagent sends to the session that has started it.

    Attributes:
        tool_call_id: The tool call that started the subagent.
        session_id: The subagent's session.
        status: The status of its request.
        reason: Why the request ended.
        content: The text of the answer, or the description of the error.
        usage: The usage of the subagent, its own subagents included.
        worked_seconds: The seconds that the request has taken, without those in which its clock stood still.
    """

    tool_call_id: Id
    session_id: SessionId
    status: Literal["completed", "failed", "cancelled"]
    reason: str = Field(max_length=200)
    content: str
    usage: Usage
    worked_seconds: float = Field(ge=0)


# Queries.


class PendingMessage(Input):
    """A user message that a caller may send next.

    Attributes:
        role: Always `user`.
        content: The text, or parts; leading and trailing white space is removed.
    """

    role: Literal["user"]
    content: MessageContent


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
        limit: Answer at most this many messages, the newest ones. The system prompt is not counted.
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
        heartbeats: The caller reads the heartbeats of the session's calls: workers send more of them for a while.
    """

    from_seq: Seq | None = None
    heartbeats: bool = True


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


# Service workflows.


class ReadThreadInput(EntriesQuery):
    """The argument of the workflow `ReadThread`: the filters of the query `entries`, over archive and live session.

    A session that does not exist is an empty page with `not_found`.

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

    It answers as the query `context` does, for any session: live, archived, closed or a fork. The `meta` of a preview
    has its cost.

    Attributes:
        session_id: The session.
    """

    session_id: SessionId


class ForkSessionInput(Input):
    """The argument of the workflow `ForkSession`.

    The fork is independent. To repeat it gives the same fork.

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

    A token has at most 524 288 bytes. To repeat it with the same `session_id` gives the same session. It can also
    fail with any error of `submit_context_operation`.

    Attributes:
        token: The token that `checkpoint` returned.
        session_id: The id of the new session. Absent: one is made.
    """

    token: str
    session_id: SessionId | None = None


UploadId = Annotated[
    str, Form(r"^[A-Za-z0-9_-]{1,64}$", "the id of an upload has 1 to 64 letters, digits, '_' and '-'")
]
_MAX_CHUNK_CHARACTERS = 4 * (MAX_CHUNK_BYTES // 3 + 1)
Chunk = Annotated[
    str,
    StringConstraints(max_length=_MAX_CHUNK_CHARACTERS),
    Form(r"^[A-Za-z0-9+/]*={0,2}$", "a chunk is base64, without line breaks"),
]


class PutBlobInput(Input):
    """The argument of the workflow `PutBlob`: a chunk of a blob, or all of it.

    A blob of several chunks is an upload: its chunks have one `upload_id` and are sent in any order, also at the same
    time, the `last` one when the others have been answered. A chunk may be repeated.

    The bytes stay in the event history of each `PutBlob` until it is deleted. The workflow with the last chunk
    deletes the histories of the others; delete its own, and those of `GetBlob`, with `DeleteWorkflowExecution`.
    `DeleteSession` deletes those with ids of the form `clew-service-putblob-<session id>-` and 32 hexadecimal digits.

    Attributes:
        session_id: The session. It need not exist yet.
        data: The bytes of the chunk in base64, at most 1 000 000 bytes.
        upload_id: The upload; absent: the blob has one chunk.
        part: The number of the chunk, from 0.
        last: Whether the blob is complete with this chunk.
        media_type: The type of the blob. Absent: the type that its first bytes have. Read with the last chunk.
        name: The name of the file. Read with the last chunk.
        digest: The SHA-256 that the blob has. Read with the last chunk.
    """

    session_id: SessionId
    data: Chunk
    upload_id: UploadId | None = None
    part: int = Field(default=0, ge=0, lt=MAX_CHUNKS)
    last: bool = True
    media_type: MediaType | None = None
    name: BlobName | None = None
    digest: Digest | None = None

    @model_validator(mode="after")
    def _check_upload(self) -> Self:
        if self.upload_id is None and (self.part or not self.last):
            raise ValueError("upload_id: a blob of several chunks needs one")
        return self


class GetBlobInput(Input):
    """The argument of the workflow `GetBlob`.

    Attributes:
        session_id: The session. Its forks and their origins share their blobs.
        digest: The digest of the blob.
        offset: Begin with this byte: the `next_offset` of the page before.
    """

    session_id: SessionId
    digest: Digest
    offset: int = Field(default=0, ge=0)


class StartUploadInput(Input):
    """The argument of the workflow `StartUpload`, which signs a URL of the store for the bytes of one blob.

    The second way to store a blob, where the store is a bucket: send the bytes to the `url` of the answer, then start
    `FinishUpload` with its `upload_id`. The bytes are in no event history. A store without signed URLs refuses with
    `upload_unavailable`.

    Treat the URL as a password until it expires. It stays in the history of this workflow: delete that with
    `DeleteWorkflowExecution`. `DeleteSession` deletes histories with ids of the form
    `clew-service-startupload-<session id>-` and 32 hexadecimal digits, and `clew-service-finishupload-…`.

    Where encryption is on, `encrypted` must be true, or the answer is `not_encrypted`. The uploader encrypts the
    bytes as objects of the archive are encrypted, under the `object_name` of the answer, as Clew's Python client
    does.

    Attributes:
        session_id: The session. It need not exist yet.
        bytes: The number of bytes that will be uploaded.
        media_type: The type that they will have. Absent: the type that their first bytes have.
        name: The name of the file.
        digest: The SHA-256 that they will have. Absent: any.
        encrypted: Whether they will be encrypted with the keys of the session's workers, before they are uploaded.
            Must be true where encryption is on. `bytes` and `digest` are those before encryption.
        expires_seconds: The URL is valid for this many seconds.
    """

    session_id: SessionId
    bytes: int = Field(ge=1)
    media_type: MediaType | None = None
    name: BlobName | None = None
    digest: Digest | None = None
    encrypted: bool = False
    expires_seconds: int = Field(default=UPLOAD_SECONDS, ge=1, le=MAX_UPLOAD_SECONDS)


class FinishUploadInput(Input):
    """The argument of the workflow `FinishUpload`, which verifies what was uploaded, and stores it as a blob.

    It can be repeated, and answers the same blob. After `content_mismatch`, `not_encrypted`, `too_large`,
    `unsupported_content` and `upload_expired` the upload is deleted: start another one. After `unknown_upload`
    (nothing has been uploaded yet) and `unknown_key` it can be finished later.

    Attributes:
        session_id: The session that the upload was started for.
        upload_id: The upload.
    """

    session_id: SessionId
    upload_id: UploadId


class SendMessageInput(Input):
    """The argument of the workflow `SendMessage`, which sends a message and waits for its outcome.

    It opens the session if it does not run. If the message is refused, it fails with the type of the refusal; if the
    request does not complete, with its error's type or its termination reason, and the outcome as the failure's
    details. If the workflow is cancelled, so is the request. A workflow id of more than 200 characters is hashed to
    make the request's id.

    Attributes:
        session_id: The session. One that hibernates, or was closed, is opened again.
        session_prefix: Instead of `session_id`: a new session, whose id is this, a hyphen, and the time for which a
            schedule has started the workflow, as in `daily-20261101T060000Z`.
        config: The configuration of a session that does not exist yet; absent: it must exist.
        message: The message. Absent `request_id`: the id of the workflow, so that a repetition has no second effect.
        close: Whether the session is closed after the outcome. Absent: a session that `session_prefix` makes is.
    """

    session_id: SessionId | None = None
    session_prefix: (
        Annotated[
            str,
            Form(
                r"^[A-Za-z0-9._:-]{1,160}$",
                "the beginning of session ids has 1 to 160 characters of letters, digits, '.', '_', ':' and '-'",
            ),
        ]
        | None
    ) = None
    config: SessionConfig | None = None
    message: MessageInput
    close: bool | None = None

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        if (self.session_id is None) is (self.session_prefix is None):
            raise ValueError("either a session_id or a session_prefix is needed")
        if self.session_prefix is not None and self.config is None:
            raise ValueError("a new session needs a config")
        return self


class DeleteSessionInput(Input):
    """The argument of the workflow `DeleteSession`.

    It closes the session and deletes its archive and its event histories, and those of its subagents. Forks stay,
    with the segments that they share. Afterwards the newest workflow of the id is `DeletedSession`, which answers
    each query with `not_found`. A new session can be started under the id.

    Attributes:
        session_id: The session.
    """

    session_id: SessionId
