"""What a session is started with: its configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from clew.contract._input import Input
from clew.contract.names import Metadata, ModelName
from clew.contract.policy import ContextPolicy
from clew.contract.sizes import MAX_MESSAGE_BYTES, MAX_TOOL_RESULT_BYTES
from clew.model.tokens import EncodingName


class ModelOptions(Input):
    """What shapes a reply beside its context. Absent: the default of the provider.

    Attributes:
        temperature: How freely the model chooses.
        max_output_tokens: The longest reply, in tokens. Absent: the policy's `reserve_output_tokens`, or 4 096 where
            that is 0.
        tool_choice: `auto`, `none`, `required`, or the name of a tool.
        reasoning_effort: How long the model thinks.
        stop: The reply ends before any of these.
        seed: For replies that can be repeated, where the provider can do that.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    max_output_tokens: int | None = Field(default=None, ge=1)
    tool_choice: str | None = Field(default=None, max_length=200)
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = None
    stop: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] | None = Field(
        default=None, max_length=4
    )
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)

    def overlay(self, upper: ModelOptions | None) -> ModelOptions:
        """These options with the fields that `upper` sets."""
        if upper is None:
            return self
        return ModelOptions.model_validate(self.model_dump(exclude_unset=True) | upper.model_dump(exclude_unset=True))


class Limits(Input):
    """What a session may take in and spend.

    `max_total_tokens` and `max_cost_usd` are over all model calls; the call that passes a limit is the last one.

    Attributes:
        max_message_bytes: Bytes of JSON of one input.
        max_tool_result_bytes: Bytes of UTF-8 that are shown of a tool result; the rest is stored.
        max_total_tokens: Tokens of prompts and replies.
        max_cost_usd: Cost by list price. Under this limit a model is not called whose price the worker does not
            know.
    """

    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1, le=MAX_MESSAGE_BYTES)
    max_tool_result_bytes: int = Field(default=MAX_TOOL_RESULT_BYTES, ge=256, le=MAX_TOOL_RESULT_BYTES)
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)


OnBusy = Literal["reject", "queue", "interrupt", "steer"]
ToolNames = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...], Field(max_length=128)
]


class SessionConfig(Input):
    """How a session behaves, from its start until it is configured otherwise.

    Attributes:
        model: The model.
        strategy: How a run is led; anything but `react` is refused.
        system_prompt: The system prompt; at most 65 536 bytes.
        tools: Tools that the model may call, by the names that the worker knows; each once.
        require_approval: Tools whose calls wait for a person's decision, beside those that always do.
        context_policy: The agent's policy. Absent: the one that the worker chooses for the model.
        model_options: The options of model calls.
        max_iterations: Model calls that a run may make.
        request_timeout_seconds: After so long a request fails with `timeout`. A wait for an approval does not count.
        on_busy: What becomes of a message while a request is served.
        steering: When inputs enter a run: with its answer (`terminal`) or before its next model call (`step`).
        encoding: Tokens are counted under it. Absent: the encoding of the model's family, where the worker knows it.
        limits: What the session may take in and spend.
        idle_timeout_seconds: After so long without work the session hibernates.
        metadata: The caller's own names and values.
    """

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
    encoding: EncodingName = "o200k_base"
    limits: Limits = Limits()
    idle_timeout_seconds: int | None = Field(default=None, ge=1)
    metadata: Metadata = Field(default={})


class SessionStart(Input):
    """The argument of `AgentSession`.

    Attributes:
        config: The configuration; that of an archived session of this id stands instead.
        carried: Only a session's own earlier workflow run may hand it on.
    """

    config: SessionConfig
    carried: dict[str, int | str] | None = None
