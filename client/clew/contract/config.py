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


class Limits(Input):
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


class SessionConfig(Input):
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
    metadata: Metadata = Field(default={})


class SessionStart(Input):
    """The argument of `AgentSession`. `carried`: only a session's own earlier run may hand it on."""

    config: SessionConfig
    carried: dict[str, int | str] | None = None
