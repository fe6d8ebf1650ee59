"""A model call, and the reply."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from clew.contract import ModelOptions
from clew.contract.policy import ContextPolicy
from clew.model.messages import ProviderData
from clew.model.prices import Prices
from clew.outcomes import Usage
from clew_workflows.protocol._value import Value


class CallModel(Value):
    """One model call, by reference: the activity fetches its context from the session, pinned to `at_seq`.

    `context_policy` is the request's own, where it had one, with the budget that the model can take where that is
    less; `token_ratio` is what the provider's tokens are to ours, where it counts more. `options.max_output_tokens`
    is always set. `parent_call_id` is the call whose tool results this one reads. With `priced` it must not be made
    unless it is known what it costs.
    """

    request_id: str
    run_id: str
    call_id: str
    iteration: int
    context_ref: str
    at_seq: int
    model: str
    options: ModelOptions
    context_policy: ContextPolicy | None = None
    token_ratio: float | None = None
    priced: bool = False
    parent_call_id: str | None = None


class RequestedTool(Value):
    """A tool call as the provider sent it. `malformed` holds the raw text where it was not a JSON object."""

    name: str
    arguments: dict[str, Any] = Field(default={})
    malformed: str | None = None


class ModelReply(Value):
    """A model's whole answer, provider-neutral."""

    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[RequestedTool, ...] = ()
    provider_data: ProviderData | None = None
    stop_reason: Literal["stop", "length", "tool_calls"] = "stop"
    usage: Usage = Usage()


class ModelAnswered(Value):
    """The outcome of `CallModel`: the reply and the recipe of what the model was shown for it.

    `schema_problem` says how an answer differs from the `output_schema` that its request asked for. `prices` are
    those by which the cost in the reply's usage was counted.
    """

    reply: ModelReply
    prices: Prices = ()
    digest: str
    policy_hash: str
    input_tokens: int
    attempt: int
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    cut_tool_results: dict[str, tuple[int, int]] | None = None
    schema_problem: str | None = None
    needs_summary: bool = False
