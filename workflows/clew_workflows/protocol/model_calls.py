"""Model calls and replies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from clew.contract import ModelOptions
from clew.contract.payloads import Fitting
from clew.contract.policy import ContextPolicy
from clew.hooks import HookPoint
from clew.model.messages import ProviderData, ToolCall
from clew.model.prices import Prices
from clew.model.tokens import EncodingName
from clew.outcomes import Usage
from clew_workflows.protocol._value import ReportedUsage, Value
from clew_workflows.protocol.failures import Failure

OUTAGES = frozenset({"insufficient_quota", "overloaded", "provider_unavailable", "rate_limited", "truncated_stream"})
"""The types of failures after which a run goes on with a fallback: the provider does not serve the model now."""


def _dump_set_fields(policy: ContextPolicy) -> dict[str, Any]:
    return policy.model_dump(mode="json", exclude_unset=True)


def _dump_options(options: ModelOptions) -> dict[str, Any]:
    return options.model_dump(mode="json", exclude_none=True)


class CallModel(Value):
    """One model call, by reference: the activity fetches the context from the session by query.

    Attributes:
        request_id: The request that the run serves.
        run_id: The run.
        call_id: The model call.
        iteration: The number of the call within its run, from 1.
        context_ref: The lane.
        at_seq: The newest entry that the context may include.
        model: `provider:model`.
        options: The model's options; `max_output_tokens` is always set.
        context_policy: The request's changes to the session's policy, with a smaller budget where the model takes
            less; None: the session's policy.
        token_ratio: The provider's token counts divided by ours; None where it counts no more than we do.
        encoding: The encoding that the reply's tokens are counted under.
        earlier_tool_calls: The number of tool calls of the session so far; those of the reply are numbered after it.
        priced: The session has a cost limit: the call fails unless the model's prices are known.
        deployment: The worker deployment that has resolved the configuration: a worker of another one answers
            `Outdated`. None: any worker makes the call.
        hooks: The points for which the worker that resolved the configuration has hooks: a worker with hooks for
            others answers `Outdated`. None: any worker makes the call.
        checks: The points whose hooks the session has run, when it has learned them for this very call: a worker
            with hooks for more points fails the attempt. None: any worker makes the call.
        limited: The providers whose rate the worker limits that resolved the configuration: a worker that limits
            others answers `Outdated`. None: any worker makes the call.
        declined: A worker for sessions has declined the call: it goes to the queue of model calls.
        parent_call_id: The call whose tool results this one reads; None for the first of a run.
        has_fallback: Another model is called if this one has an outage, so that the call gives up soon.
    """

    request_id: str
    run_id: str
    call_id: str
    iteration: int
    context_ref: str
    at_seq: int
    model: str
    options: Annotated[ModelOptions, PlainSerializer(_dump_options, when_used="json")]
    context_policy: Annotated[ContextPolicy, PlainSerializer(_dump_set_fields, when_used="json")] | None = None
    token_ratio: float | None = None
    encoding: EncodingName
    earlier_tool_calls: int = 0
    priced: bool = False
    deployment: str | None = None
    hooks: tuple[HookPoint, ...] | None = None
    checks: tuple[HookPoint, ...] | None = None
    limited: tuple[str, ...] | None = None
    declined: bool = False
    parent_call_id: str | None = None
    has_fallback: bool = False


class RequestedTool(Value):
    """A tool call as the provider sent it.

    Attributes:
        name: The tool.
        arguments: The arguments.
        malformed: The arguments' text where it was not a JSON object; `arguments` is empty then.
        cut: The reply ended within the arguments, whose text so far is `malformed`.
    """

    name: str
    arguments: dict[str, Any] = Field(default={})
    malformed: str | None = None
    cut: bool = False


class ModelReply(Value):
    """A model's complete reply, in a form that is the same for all providers.

    Attributes:
        content: The text.
        thinking: The model's reasoning, where the provider shows it.
        tool_calls: The tool calls that the model requests.
        provider_data: Data that the same provider wants back with the next call.
        stop_reason: Why the model stopped; `interrupted`: the call ended before the reply was complete.
        usage: The tokens, and the cost where the prices are known.
    """

    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[RequestedTool, ...] = ()
    provider_data: ProviderData | None = None
    stop_reason: Literal["stop", "length", "tool_calls", "interrupted"] = "stop"
    usage: ReportedUsage = Usage()


class ModelAnswered(Value):
    """The result of `CallModel`: the reply, and the measures of the context that the model was sent.

    The reply of a call that was cancelled is what had been read of it (`interrupted`).

    Attributes:
        reply: The reply.
        prices: The prices that the cost in the reply's usage was computed with.
        digest: The digest of the context.
        policy_hash: The digest of the context policy.
        input_tokens: The context's tokens under our encoding.
        attempt: The number of the attempt that succeeded, from 1.
        epoch: The context's epoch, where the policy's window is `epoch`.
        shared_prefix_tokens: The tokens that the context's beginning shares with that of the call before.
        cleared_tool_results: The number of tool results that the policy cleared.
        truncated_tool_results: The tool results that were truncated, by tool call id: the bytes of the beginning and
            of the end that the context has.
        schema_problem: How the answer violates the request's `output_schema`; None if it does not.
        needs_summary: The lane has reached the policy's threshold for a summary.
        tokens: The tokens of the reply's message. None: the session counts them.
        earlier_usage: The usage of earlier attempts of the call, whose replies were lost or of no use.
        fitting: What the request had otherwise than the context; None: nothing.
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
    truncated_tool_results: dict[str, tuple[int, int]] | None = None
    schema_problem: str | None = None
    needs_summary: bool = False
    tokens: int | None = None
    earlier_usage: ReportedUsage | None = None
    fitting: Annotated[Fitting, PlainSerializer(Fitting.as_dict, when_used="json")] | None = None

    @property
    def usage(self) -> Usage:
        """The usage of the call with all its attempts, counted as one model call."""
        usage = self.reply.usage.plus(self.earlier_usage) if self.earlier_usage else self.reply.usage
        return usage.model_copy(update={"model_calls": 1})


class ModelStopped(Value):
    """A model call that has ended without a complete reply.

    Attributes:
        failure: Why it failed; None: it was cancelled.
        answer: What had been read of the reply; None: nothing.
    """

    failure: Failure | None = None
    answer: ModelAnswered | None = None


class Outdated(Value):
    """The answer to `CallModel` of a worker whose deployment is not the call's: no model was called.

    Attributes:
        deployment: The worker's deployment.
        hooks: The points for which the worker has hooks.
    """

    deployment: str
    hooks: tuple[HookPoint, ...] = ()


class Declined(Value):
    """The answer to `CallModel` of a worker for sessions that does not make the call itself: no model was called.

    Attributes:
        calls_models: The worker makes model calls, and has as many as it may.
    """

    calls_models: bool


def describe_read(characters: int) -> str:
    """Describe how much of a reply was read when the time was over."""
    if characters:
        return f"the reply was being streamed, {characters} characters had arrived"
    return "the model had not begun to reply"


TOOL_CALL_ID = re.compile(r"tool([0-9]{5,15})")
"""The ids of a session's tool calls, with their numbers. All providers take this form: Mistral wants nine letters and
digits."""


def number_tool_calls(tools: Iterable[RequestedTool], earlier: int) -> list[ToolCall]:
    """Number the tool calls of a reply: their ids are unique in the thread, which has `earlier` calls already."""
    return [
        {"id": f"tool{number:05d}", "name": tool.name, "arguments": tool.arguments}
        for number, tool in enumerate(tools, earlier + 1)
    ]
