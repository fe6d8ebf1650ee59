"""The arguments of updates and signals, except for context operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from clew_workflows.contract.config import (
    ApprovalScope,
    Fallbacks,
    Limits,
    ModelOptions,
    OnBusy,
    PriorityLevel,
    ToolNames,
)
from clew_workflows.contract.names import AgentName, Id, Metadata, ModelName, OwnRefs, Seq, SessionId
from clew_workflows.contract.payloads import StoredResult
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.schemas import check_schema
from clew_workflows.contract.validation import Input, MessageText


def _validate_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        check_schema(schema)
    except ValueError as error:
        raise PydanticCustomError("json_schema", "{reason}", {"reason": str(error)}) from None
    return schema


OutputSchema = Annotated[dict[str, Any], AfterValidator(_validate_schema)]
"""A JSON Schema (draft 2020-12) within the bounds of `clew_workflows.contract.schemas`."""


class MessageInput(Input):
    """The argument of the update `message`.

    Attributes:
        content: The text of the user, without data URLs of 1 000 characters or more; leading and trailing white
            space is removed.
        request_id: The request's id: each is served once. Absent: the id of the Update, which has the same
            bounds. Ids that begin with `followup:` are reserved.
        on_busy: How the session treats the message while it serves a request; absent: the session's setting.
        context_policy: Overlays the session's policy for this request, or the one that comes with `model`.
        model: The model of this request. The policy that the worker chooses for the model comes with it, unless the
            session was started with a policy.
        fallbacks: The models that this request tries while its model has an outage, instead of the session's; `[]`:
            none.
        model_options: Overlay the session's options for this request.
        max_iterations: The most model calls of the run.
        timeout_seconds: After so many seconds the request fails with `timeout`.
        output_schema: The JSON Schema that the answer must follow (draft 2020-12, within bounds).
        tools: The tools of this request: some of the session's, by the names that models read; `[]`: none.
            `read_result` stays beside others.
        metadata: The caller's own names and values; the message's entry has them.
        refs: The caller's own refs, such as the message's id in another system. The entry and transcripts have
            them; no model reads them.
    """

    content: MessageText
    request_id: Id | None = None
    on_busy: OnBusy | None = None
    context_policy: ContextPolicy | None = None
    model: ModelName | None = None
    fallbacks: Fallbacks | None = None
    model_options: ModelOptions | None = None
    max_iterations: int | None = Field(default=None, ge=1, le=1000)
    timeout_seconds: int | None = Field(default=None, ge=1, le=30 * 86400)
    output_schema: OutputSchema | None = None
    tools: ToolNames | None = None
    metadata: Metadata | None = None
    refs: OwnRefs | None = None


InputKind = Literal["steer", "inject"]


class SteerInput(Input):
    """The argument of the signals `steer` and `inject`: a message for the run in progress.

    Attributes:
        content: The text, without data URLs of 1 000 characters or more; leading and trailing white space is removed.
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

    content: MessageText
    at: Literal["terminal", "step"] | None = None
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


class ConfigureInput(Input):
    """The argument of the update `configure`. Absent fields stay unchanged.

    Attributes:
        agent: The agent. A worker resolves it anew, also if the session is pinned or has the same one.
        model: The model.
        fallbacks: All models that a run tries while its model has an outage.
        model_options: Overlay the options in force; null takes a value away.
        system_prompt: The system prompt; at most 65 536 bytes.
        tools: All tools that the model may call from then on. A worker resolves their schemas anew, also if the
            session is pinned.
        context_policy: Overlays the session's policy.
        limits: Overlay the limits in force; null takes a value away.
        on_busy: How the session treats a message while it serves a request.
        steering: When inputs enter a run.
        require_approval: All tools whose calls wait for a person's decision, beside those that always do.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            until the last decision (`round`).
        priority: Which calls the workers take first: 1 the first, 5 the last.
        metadata: All names and values of the caller's own. Those of the session's agent stay below them.
    """

    agent: AgentName | None = None
    model: ModelName | None = None
    fallbacks: Fallbacks | None = None
    model_options: ModelOptions | None = None
    system_prompt: str | None = None
    tools: ToolNames | None = None
    context_policy: ContextPolicy | None = None
    limits: Limits | None = None
    on_busy: OnBusy | None = None
    steering: Literal["terminal", "step"] | None = None
    require_approval: ToolNames | None = None
    approval_scope: ApprovalScope | None = None
    priority: PriorityLevel | None = None
    metadata: Metadata | None = None


class CancelInput(Input):
    """The argument of the update `cancel_request` and of the signal `cancel`.

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

    Attributes:
        tool_call_id: The call.
        decision: Whether the tool may run.
        reason: For people; the model reads it if the call is denied.
        by: Who decided, as the caller says: a name or an id. The entry has it, and no model reads it.
        arguments: The arguments that replace the model's; only with `approve`. Those of one reply's calls have at
            most 524 288 bytes together.
    """

    tool_call_id: Id
    decision: Literal["approve", "deny"]
    reason: str | None = Field(default=None, max_length=2000)
    by: Id | None = None
    arguments: dict[str, Any] | None = None


class ToolResultInput(Input):
    """The argument of the update `submit_tool_result`.

    Attributes:
        tool_call_id: The external call that waits.
        content: The result: a text, or any other JSON value, whose JSON text the model reads. The text has at most
            `max_tool_result_bytes`.
        is_error: Whether the result describes a failure.
        by: Who answers, as the caller says: a name or an id. The entry has it, and no model reads it.
    """

    tool_call_id: Id
    content: Any
    is_error: bool = False
    by: Id | None = None


class LateResultInput(Input):
    """The argument of the signal `late_result`, by which a tool's worker answers a call whose run has ended.

    Attributes:
        tool_call_id: The call, whose result in the thread is in doubt.
        content: The result; the part of it that a message has.
        result: Where the full result is stored, if `content` has a part of it.
        is_error: Whether the result describes a failure.
    """

    tool_call_id: Id
    content: str
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
        expires_seconds: The token expires after so many seconds; 30 days by default.
    """

    context_ref: Id | None = None
    expires_seconds: int = Field(default=30 * 86400, ge=1, le=3650 * 86400)


class SummarizeInput(Input):
    """The argument of the update `summarize`.

    A summary covers everything up to its `to_seq`: it builds on the summary before.

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

    Attributes:
        reason: For people; the thread has it.
    """

    reason: str | None = Field(default=None, max_length=2000)


class CloseInput(Input):
    """The argument of the update `close_session` and of the signal `close`.

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
