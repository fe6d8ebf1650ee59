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


def _affordable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        check_schema(schema)
    except ValueError as error:
        raise PydanticCustomError("json_schema", "{reason}", {"reason": str(error)}) from None
    return schema


OutputSchema = Annotated[dict[str, Any], AfterValidator(_affordable)]
"""A JSON Schema (draft 2020-12) within the bounds of `clew.contract.schemas`."""


class MessageInput(Input):
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


class SteerInput(Input):
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


class ConfigureInput(Input):
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


class CancelInput(Input):
    """The argument of `cancel_request` and `cancel`. `inputs` decides about what the run has not read yet."""

    request_id: Id | None = None
    reason: str | None = Field(default=None, max_length=2000)
    inputs: Literal["drop", "follow_up"] = "drop"


class ApprovalInput(Input):
    """The argument of the update `resolve_approval`. Edited `arguments` replace the model's."""

    tool_call_id: Id
    decision: Literal["approve", "deny"]
    reason: str | None = Field(default=None, max_length=2000)
    arguments: dict[str, Any] | None = None


class AwaitRequestInput(Input):
    """The argument of the update `await_request`."""

    request_id: Id


class CheckpointInput(Input):
    """The argument of the update `checkpoint`. Without `expires_seconds` a token is good for 30 days."""

    context_ref: Id | None = None
    expires_seconds: int = Field(default=30 * 86400, ge=1, le=3650 * 86400)


class SummarizeInput(Input):
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


class HibernateInput(Input):
    """The argument of the update `hibernate`."""

    reason: str | None = Field(default=None, max_length=2000)


class CloseInput(Input):
    """The argument of the update `close_session` and of the signal `close`."""

    reason: str | None = Field(default=None, max_length=2000)


class ForkedInput(Input):
    """The argument of the signal `forked`, which Clew itself sends to a session that was forked."""

    session_id: SessionId
    fork_seq: Seq
    metadata: Metadata | None = None
