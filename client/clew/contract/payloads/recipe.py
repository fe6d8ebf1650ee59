"""The recipe of a model call: what the model was shown, in terms of the thread."""

from __future__ import annotations

from typing import Literal

from clew.contract.payloads.base import Json, Stored, Usage, stored
from clew.contract.policy import ContextPolicy
from clew.model.prices import Price
from clew.outcomes import Usage as UsageOutput


@stored
class Recipe(Stored):
    """What a model was shown for a reply: enough to make the same context again from the thread alone.

    Attributes:
        context_ref: The lane that was projected.
        basis_seq: The newest entry that the context could hold.
        model: The model that was called, as `provider:model`.
        model_options: The options of the call (`ModelOptions`), those that were set.
        policy_hash: The hash of the context policy in force.
        digest: SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}` as they were shown.
        input_tokens: The size of the context in tokens of the session's encoding.
        usage: What the provider reported of the call.
        attempt: Which attempt of the call gave the reply, from 1 on.
        stop_reason: Why the model stopped: it had said all, its output limit was reached, or it calls tools.
        epoch: The seqs at which the window of an epoch was cut; absent for sliding windows.
        shared_prefix_tokens: Tokens that the context shares with the beginning of the lane's call before it; absent
            for sliding windows.
        cleared_tool_results: How many tool results gave way to a marker; absent where the policy clears none.
        cut_tool_results: The tool results that were shown in part: of each, by the id of its call, the bytes of its
            beginning and of its end.
        context_policy: The call's own context policy, the fields that it set; absent: the session's was in force.
        prices: The list prices by which the call's cost was counted, by rising `above`; absent where the worker knew
            none.
        token_ratio: The provider's tokens to ours, where it counts more.
        output_schema_seq: The seq of the user's message whose `output_schema` the answer was to follow.
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
    stop_reason: Literal["stop", "length", "tool_calls"]
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    cut_tool_results: dict[str, tuple[int, int]] | None = None
    context_policy: Json | None = None
    prices: tuple[Price, ...] = ()
    token_ratio: float | None = None
    output_schema_seq: int | None = None

    @property
    def policy(self) -> ContextPolicy | None:
        """The call's own context policy, with the fields set that it set; None where it had none.

        Raises:
            ValueError: a later release has written fields that this one does not know.
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
        """What the call used, as one model call."""
        return self.usage.model_copy(update={"model_calls": 1})
