"""The wire contract in types: what may be sent to a session, and what it answers.

Inputs are strict: an unknown field, a wrong type or a value out of range is refused, never guessed at.
Outputs may gain optional fields. Names and shapes never change once released.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from clew.contract.policy import ContextPolicy
from clew.contract.schemas import check_schema
from clew.model.tokens import EncodingName

WORKFLOW_TYPE = "AgentSession"
RESTORE_WORKFLOW = "RestoreSession"
READ_WORKFLOW = "ReadThread"
READ_CONTEXT_WORKFLOW = "ReadContext"
FORK_WORKFLOW = "ForkSession"
DELETE_WORKFLOW = "DeleteSession"
TASK_QUEUE = "clew"
READ_RESULT = "read_result"
"""The tool that every session with tools has: its model reads large results with it."""

MAX_MESSAGE_BYTES = 262_144
"""A whole payload, so that ten in flight stay under the server's 4 MB for one message."""
MAX_TOOL_RESULT_BYTES = 65_536
MAX_SYSTEM_PROMPT_BYTES = 65_536
MAX_PAGE_BYTES = 900_000
"""Every answer to a query stays under 1 MB."""
MAX_TOKEN_BYTES = 512 * 1024
"""Of a checkpoint's token."""
MAX_PENDING = 64
"""Messages that a preview takes; as many inputs may wait for one run."""
MAX_WAITERS = 6
"""Temporal holds ten updates in flight; the rest is kept free, so that a cancel always gets through."""
MAX_WAIT_SECONDS = 60

SessionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,200}$")]
Id = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}:[^\s\x00-\x1f/][^\s\x00-\x1f]{0,199}$")]
"""`provider:model`. A session can name a provider, never an address."""
Seq = Annotated[int, Field(ge=0)]
Metadata = Annotated[dict[Id, Annotated[str, StringConstraints(max_length=2000)]], Field(max_length=64)]


class _Input(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelOptions(_Input):
    """What shapes a reply beside its context. Absent: the provider's own default."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    max_output_tokens: int | None = Field(default=None, ge=1)
    tool_choice: str | None = Field(default=None, max_length=200, description="auto, none, required, or a tool")
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = None
    stop: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] | None = Field(
        default=None, max_length=4
    )
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)

    def overlaid(self, upper: ModelOptions | None) -> ModelOptions:
        """These options with the fields that `upper` sets."""
        if upper is None:
            return self
        return ModelOptions.model_validate(self.model_dump(exclude_unset=True) | upper.model_dump(exclude_unset=True))


class Limits(_Input):
    """What a session may take in and spend. Sizes are in bytes of JSON, or of UTF-8 for a tool's result.

    `max_total_tokens` and `max_cost_usd` are over all model calls; the one that passes a limit is the last. Costs are
    by list price: under `max_cost_usd` a model is not called whose price the worker does not know.
    """

    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1, le=MAX_MESSAGE_BYTES)
    max_tool_result_bytes: int = Field(default=MAX_TOOL_RESULT_BYTES, ge=256, le=MAX_TOOL_RESULT_BYTES)
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)


OnBusy = Literal["reject", "queue", "interrupt", "steer"]
ToolNames = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...], Field(max_length=128)
]


class SessionConfig(_Input):
    """How a session behaves, from its start until it is configured otherwise."""

    model: ModelName
    strategy: str = Field(default="react", max_length=200)
    system_prompt: str | None = None
    tools: ToolNames = ()
    require_approval: ToolNames = ()
    context_policy: ContextPolicy | None = None
    model_options: ModelOptions = ModelOptions()
    max_iterations: int = Field(default=10, ge=1, le=1000)
    request_timeout_seconds: int = Field(default=900, ge=1, le=30 * 86400)
    on_busy: OnBusy = "reject"
    steering: Literal["terminal", "step"] = "terminal"
    encoding: EncodingName = Field(default="o200k_base", description="absent: the one of the model's family")
    limits: Limits = Limits()
    idle_timeout_seconds: int | None = Field(default=None, ge=1)
    metadata: Metadata = {}


class SessionStart(_Input):
    """The argument of `AgentSession`. `carried`: only a session's own earlier run may hand it on."""

    config: SessionConfig
    carried: dict[str, int | str] | None = None


def _affordable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        check_schema(schema)
    except ValueError as error:
        raise PydanticCustomError("json_schema", "{reason}", {"reason": str(error)}) from None
    return schema


OutputSchema = Annotated[dict[str, Any], AfterValidator(_affordable)]
"""A JSON Schema (draft 2020-12) within the bounds of `clew.contract.schemas`."""


class MessageInput(_Input):
    """The argument of the update `message`."""

    content: str
    request_id: Id | None = None
    on_busy: OnBusy | None = None
    context_policy: ContextPolicy | None = None
    model: ModelName | None = None
    model_options: ModelOptions | None = None
    max_iterations: int | None = Field(default=None, ge=1, le=1000)
    timeout_seconds: int | None = Field(default=None, ge=1, le=30 * 86400)
    output_schema: OutputSchema | None = None
    metadata: Metadata | None = None


InputKind = Literal["steer", "inject"]


class SteerInput(_Input):
    """The argument of the signals `steer` and `inject`: user-style input for the run in progress.

    `at` says when it enters: with the answer (`terminal`) or before the next model call (`step`); absent: as the
    session is configured. `on_failure` says what becomes of it when the run ends without having read it.
    """

    content: str
    at: Literal["terminal", "step"] | None = None
    input_id: Id | None = None
    expected_request_id: Id | None = None
    on_failure: Literal["follow_up", "drop"] = "follow_up"
    source: Id | None = None


class SubmitInput(SteerInput):
    """The argument of the update `submit_input`."""

    kind: InputKind


class SnapshotToolCall(_Input):
    """A tool call within a snapshot."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: dict[str, Any]


class SnapshotProviderData(_Input):
    """What a provider wants back with a message of a snapshot."""

    provider: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    blocks: list[dict[str, Any]]


class SnapshotMessage(_Input):
    """A message of a snapshot, of the form that contexts have."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple[SnapshotToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    provider_data: SnapshotProviderData | None = None


class Snapshot(_Input):
    """A whole context, as `replace` puts it under a lane. Its tool results follow their calls."""

    messages: tuple[SnapshotMessage, ...]
    system_prompt: str | None = None


class Operation(_Input):
    """What a context operation does."""

    type: Literal["replace", "switch", "pin", "unpin", "expand"]
    reason: Literal["manual", "restore", "compaction", "system"] = "manual"
    result_context: Snapshot | None = None
    seqs: list[Seq] | None = None
    base_seq: Seq | None = None
    meta: dict[str, Any] | None = None


class ContextOperation(_Input):
    """The argument of `submit_context_operation` and `modify_context`. An `op_id` is applied once."""

    op_id: Id
    context_ref: Id | None = None
    operation: Operation


class ConfigureInput(_Input):
    """The argument of the update `configure`; what is absent stays as it is."""

    model: ModelName | None = None
    model_options: ModelOptions | None = None
    system_prompt: str | None = None
    tools: ToolNames | None = None
    context_policy: ContextPolicy | None = None
    limits: Limits | None = None
    on_busy: OnBusy | None = None
    steering: Literal["terminal", "step"] | None = None
    require_approval: ToolNames | None = None


class CancelInput(_Input):
    """The argument of `cancel_request` and `cancel`. `inputs` decides about what the run has not read yet."""

    request_id: Id | None = None
    reason: str | None = Field(default=None, max_length=2000)
    inputs: Literal["drop", "follow_up"] = "drop"


class ApprovalInput(_Input):
    """The argument of the update `resolve_approval`. Edited `arguments` replace the model's."""

    tool_call_id: Id
    decision: Literal["approve", "deny"]
    reason: str | None = Field(default=None, max_length=2000)
    arguments: dict[str, Any] | None = None


class AwaitRequestInput(_Input):
    """The argument of the update `await_request`."""

    request_id: Id


class CheckpointInput(_Input):
    """The argument of the update `checkpoint`. Without `expires_seconds` a token is good for 30 days."""

    context_ref: Id | None = None
    expires_seconds: int = Field(default=30 * 86400, ge=1, le=3650 * 86400)


class SummarizeInput(_Input):
    """The argument of the update `summarize`: a lane, and from which seq to which it is summed up.

    Without `to_seq` that is everything but the last turns that the policy keeps. What is before `from_seq` is in the
    summary too: a summary speaks for everything up to its `to_seq`, and builds on the one before it.
    """

    context_ref: Id | None = None
    from_seq: Seq | None = None
    to_seq: Seq | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.from_seq is not None and self.to_seq is not None and self.to_seq < self.from_seq:
            raise ValueError(f"to_seq ({self.to_seq}) must not be before from_seq ({self.from_seq})")
        return self


class RestoreInput(_Input):
    """The argument of the workflow `RestoreSession`. Without a `session_id` the new session gets one of its own."""

    token: str
    session_id: SessionId | None = None


class HibernateInput(_Input):
    """The argument of the update `hibernate`."""

    reason: str | None = Field(default=None, max_length=2000)


class CloseInput(_Input):
    """The argument of the update `close_session` and of the signal `close`."""

    reason: str | None = Field(default=None, max_length=2000)


class PendingMessage(_Input):
    """A message that may be asked next. Only users ask, so it has no other role."""

    role: Literal["user"]
    content: str


class ContextQuery(_Input):
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


class TranscriptQuery(_Input):
    """The argument of the query `transcript`."""

    context_ref: Id | None = None
    from_seq: Seq = 0
    limit: int | None = Field(default=None, ge=1)
    include_system: bool = False


class WindowQuery(_Input):
    """The argument of the query `window`."""

    token_budget: int
    context_ref: Id | None = None


class EntriesQuery(_Input):
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


class ForkSessionInput(_Input):
    """The argument of the workflow `ForkSession`. Without `new_session_id` the fork gets an id of its own."""

    session_id: SessionId
    at_seq: Seq
    new_session_id: SessionId | None = None
    metadata: Metadata | None = None


class ForkedInput(_Input):
    """The argument of the signal `forked`, which Clew itself sends to a session that was forked."""

    session_id: SessionId
    fork_seq: Seq
    metadata: Metadata | None = None


class DeleteSessionInput(_Input):
    """The argument of the workflow `DeleteSession`."""

    session_id: SessionId
