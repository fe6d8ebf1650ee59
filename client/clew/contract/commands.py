"""What updates and signals bring to a session, context operations aside."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from clew.contract._input import Input
from clew.contract.config import Limits, ModelOptions, OnBusy, ToolNames
from clew.contract.names import Id, Metadata, ModelName, Seq, SessionId
from clew.contract.policy import ContextPolicy
from clew.contract.schemas import check_schema


def _validate_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        check_schema(schema)
    except ValueError as error:
        raise PydanticCustomError("json_schema", "{reason}", {"reason": str(error)}) from None
    return schema


OutputSchema = Annotated[dict[str, Any], AfterValidator(_validate_schema)]
"""A JSON Schema (draft 2020-12) within the bounds of `clew.contract.schemas`."""


class MessageInput(Input):
    """The argument of the update `message`.

    Attributes:
        content: What the user says; leading and trailing white space is removed.
        request_id: A request is served once for its id. Absent: the id of the Update. Ids that begin with
            `followup:` are reserved.
        on_busy: What becomes of the message while a request is served; absent: the session's setting.
        context_policy: Overlays the session's policy for this request, or the one that comes with `model`.
        model: The model of this request. The policy that the worker chooses for it comes with it, unless the session
            was started with a policy.
        model_options: Overlay the session's options for this request.
        max_iterations: Model calls that its run may make.
        timeout_seconds: After so long the request fails with `timeout`.
        output_schema: The answer must be JSON of this schema (draft 2020-12, within bounds).
        metadata: The caller's own names and values; the message's entry keeps them.
    """

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


class SteerInput(Input):
    """The argument of the signals `steer` and `inject`: a user's words for the run in progress.

    Attributes:
        content: What is said; leading and trailing white space is removed.
        at: When it enters: with the answer (`terminal`) or before the next model call (`step`); absent: the
            session's `steering`.
        input_id: An input is accepted once for its id. Ids of the form `input-<n>` are reserved.
        expected_request_id: Refuse the input unless this request is running.
        on_failure: When the run fails, or ends by its iterations, without having read it: a follow-up run answers
            it, or it is dropped.
        source: Where it comes from; absent: `steer` or `inject`.
    """

    content: str
    at: Literal["terminal", "step"] | None = None
    input_id: Id | None = None
    expected_request_id: Id | None = None
    on_failure: Literal["follow_up", "drop"] = "follow_up"
    source: Id | None = None


class SubmitInput(SteerInput):
    """The argument of the update `submit_input`.

    Attributes:
        kind: A correction by the user, or a word of a program.
    """

    kind: InputKind


class ConfigureInput(Input):
    """The argument of the update `configure`; what is absent stays as it is.

    Attributes:
        model: The model.
        model_options: Overlay the options in force; null takes a value away.
        system_prompt: The system prompt; at most 65 536 bytes.
        tools: All tools that the model may call from then on.
        context_policy: Overlays the session's policy.
        limits: Overlay the limits in force; null takes a value away.
        on_busy: What becomes of a message while a request is served.
        steering: When inputs enter a run.
        require_approval: All tools whose calls wait for a person's decision, beside those that always do.
    """

    model: ModelName | None = None
    model_options: ModelOptions | None = None
    system_prompt: str | None = None
    tools: ToolNames | None = None
    context_policy: ContextPolicy | None = None
    limits: Limits | None = None
    on_busy: OnBusy | None = None
    steering: Literal["terminal", "step"] | None = None
    require_approval: ToolNames | None = None


class CancelInput(Input):
    """The argument of the update `cancel_request` and of the signal `cancel`.

    Attributes:
        request_id: The request; absent: the one that is running, or the summary in the making.
        reason: For people; the outcome and the thread keep it.
        inputs: What becomes of inputs that the run has not read: they are dropped, or a follow-up run answers them.
    """

    request_id: Id | None = None
    reason: str | None = Field(default=None, max_length=2000)
    inputs: Literal["drop", "follow_up"] = "drop"


class ApprovalInput(Input):
    """The argument of the update `resolve_approval`.

    Attributes:
        tool_call_id: The call.
        decision: Whether it may run.
        reason: For people; the model reads it where the call is denied.
        arguments: The arguments that the tool is called with in place of the model's; only with `approve`. Those of
            one reply's calls have at most 524 288 bytes together.
    """

    tool_call_id: Id
    decision: Literal["approve", "deny"]
    reason: str | None = Field(default=None, max_length=2000)
    arguments: dict[str, Any] | None = None


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
        expires_seconds: The token is good for so long; 30 days unless given.
    """

    context_ref: Id | None = None
    expires_seconds: int = Field(default=30 * 86400, ge=1, le=3650 * 86400)


class SummarizeInput(Input):
    """The argument of the update `summarize`.

    A summary stands for everything up to its `to_seq`: it builds on the summary before it.

    Attributes:
        context_ref: The lane; absent: the active one.
        from_seq: Sum up anew from here, where the summary in force reaches further.
        to_seq: Sum up to here, rounded up to a whole group of tool calls. Absent: all but the last turns that the
            policy keeps.
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
        reason: For people; the thread keeps it.
    """

    reason: str | None = Field(default=None, max_length=2000)


class CloseInput(Input):
    """The argument of the update `close_session` and of the signal `close`.

    Attributes:
        reason: For people; the thread keeps it.
    """

    reason: str | None = Field(default=None, max_length=2000)


class ForkedInput(Input):
    """The argument of the signal `forked`, which Clew itself sends to a session that was forked.

    Attributes:
        session_id: The fork.
        fork_seq: The last entry that both have.
        metadata: The metadata that the fork was made with.
    """

    session_id: SessionId
    fork_seq: Seq
    metadata: Metadata | None = None
