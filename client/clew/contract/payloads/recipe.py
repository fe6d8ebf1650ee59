"""The recipe of a model call: how its context was made from the thread."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clew.contract.payloads.base import Json, Stored, Usage, stored
from clew.contract.policy import ContextPolicy
from clew.model.prices import Price
from clew.outcomes import Usage as UsageOutput


@stored
class Fitting(Stored):
    """What a request has otherwise than its context, because the provider refuses the context as it is.

    Attributes:
        dialect: The dialect that the request follows; `docs/models.md` lists them.
        merged: Messages that were joined to another one: system messages, and neighbours of one role.
        added: Messages that stand in the request alone, where the provider wants one.
        dropped: Messages without any text, which are not in the request.
        tools: Tools whose name, description or schema was changed, and how.
        tools_left_out: Tools that are not in the request, and why.
        options: Options that were changed or left out, and how; `output_schema` where the prompt describes it.
    """

    dialect: str
    merged: int = 0
    added: int = 0
    dropped: int = 0
    tools: dict[str, str] = Field(default_factory=dict)
    tools_left_out: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)


@stored
class Recipe(Stored):
    """How the context of a model call was made: enough to make it again from the thread alone.

    Attributes:
        context_ref: The lane that was projected.
        basis_seq: The newest entry that the context could include.
        model: The model that was called, as `provider:model`.
        model_options: The options of the call (`ModelOptions`) that were set.
        policy_hash: The hash of the context policy in force.
        digest: SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}`.
        input_tokens: Tokens of the context under the session's encoding.
        usage: The usage that the provider reported; an estimate (`estimated_calls`) of an interrupted reply, and
            where the provider reported none.
        earlier_usage: The usage of earlier attempts of the call, whose replies were lost or of no use.
        attempt: The number of the attempt that returned the reply, from 1 on.
        stop_reason: `stop`: the reply is complete; `length`: it reached its limit; `tool_calls`: it calls tools;
            `interrupted`: the call was cancelled, or failed.
        epoch: The seqs at which the window of an epoch was truncated; absent for sliding windows.
        shared_prefix_tokens: Tokens that the context shares with the beginning of the lane's call before it; absent
            for sliding windows.
        cleared_tool_results: Tool results that a marker replaces; absent where the policy clears none.
        truncated_tool_results: Tool results that were truncated, by the id of the tool call: the bytes that are left
            of the beginning and of the end.
        context_policy: The fields that the call's own context policy set; absent: the session's was in force.
        prices: The list prices that the cost was computed from, by rising `above`; absent where the worker knew none.
        token_ratio: The ratio of the provider's tokens to those counted here, if it is larger than 1.
        tools: The names of the call's tools, if its request named some of the session's.
        output_schema_seq: The seq of the user message whose `output_schema` the answer was to follow.
        fitting: What the request had otherwise than the context; absent: nothing.
    """

    context_ref: str
    basis_seq: int
    model: str
    model_options: Json
    policy_hash: str
    digest: str
    input_tokens: int
    usage: Usage
    attempt: int
    stop_reason: Literal["stop", "length", "tool_calls", "interrupted"]
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    truncated_tool_results: dict[str, tuple[int, int]] | None = None
    context_policy: Json | None = None
    prices: tuple[Price, ...] = ()
    token_ratio: float | None = None
    tools: tuple[str, ...] | None = None
    output_schema_seq: int | None = None
    earlier_usage: Usage | None = None
    fitting: Fitting | None = None

    @property
    def policy(self) -> ContextPolicy | None:
        """The call's own context policy, with only its own fields set; None where it had none.

        Raises:
            ValueError: The policy has fields of a later release.
        """
        if not self.context_policy:
            return None
        return ContextPolicy.model_validate(self.context_policy, strict=False)

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self.model.partition(":")[0]

    @property
    def call_usage(self) -> UsageOutput:
        """The usage of the call with all its attempts, counted as one model call."""
        usage = self.usage.plus(self.earlier_usage) if self.earlier_usage else self.usage
        return usage.model_copy(update={"model_calls": 1})
