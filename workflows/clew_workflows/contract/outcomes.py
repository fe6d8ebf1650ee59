"""The outcome of a request, and its usage: values that errors, replies and answers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

_Number = TypeVar("_Number", int, float)


class Output(BaseModel):
    """The base of all answers: frozen; fields of newer releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def as_dict(self) -> dict[str, Any]:
        """The answer as a JSON object, without absent fields."""
        return self.model_dump(mode="json", exclude_none=True)


class Usage(Output):
    """Tokens as the providers reported them; what they did not report is estimated.

    Of the requests that share a run, one has the run's usage: the sum over all requests is the session's.

    Attributes:
        input_tokens: Tokens of prompts, including those read from the provider's cache and written to it.
        output_tokens: Tokens of replies.
        cached_input_tokens: Tokens of prompts that were read from the provider's cache.
        written_input_tokens: Tokens of prompts that were written to the cache, if the provider charges for that.
        long_written_input_tokens: Those of them that the cache keeps for an hour, which cost more.
        cost_usd: The cost, in USD, of the calls whose list price is known.
        model_calls: Model calls.
        estimated_calls: Model calls whose tokens are estimated: their replies were interrupted, or their provider
            reported none; absent: none.
        shared_with: The request whose usage has the numbers of the run that both share.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    written_input_tokens: int | None = None
    long_written_input_tokens: int | None = None
    cost_usd: float | None = None
    model_calls: int = 0
    estimated_calls: int | None = None
    shared_with: str | None = None

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            written_input_tokens=_sum(self.written_input_tokens, other.written_input_tokens),
            long_written_input_tokens=_sum(self.long_written_input_tokens, other.long_written_input_tokens),
            cost_usd=_sum(self.cost_usd, other.cost_usd),
            model_calls=self.model_calls + other.model_calls,
            estimated_calls=_sum(self.estimated_calls, other.estimated_calls),
        )


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    """Add two numbers; either may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


class OutcomeError(Output):
    """The error of a failed request.

    Attributes:
        type: The type of the error, a word of the contract's list.
        message: A description for people.
        retryable: Whether the same message may succeed another time.
    """

    type: str
    message: str
    retryable: bool = False


class RequestOutcome(Output):
    """The status of a request. The answer's text is in the thread, so that the history has it once.

    The query `entries` with `from_seq` as `answer_seq` and a `limit` of 1 reads the answer's text, or the workflow
    `ReadThread` once the session has ended.

    Attributes:
        request_id: The request.
        run_id: The run that served it.
        status: `running`: the request has not ended; wait again with `await_request`. The others are final.
        termination_reason: Why the run ended.
        reason: The reason that the caller gave for a cancellation.
        answer_seq: The entry with the newest text of the model; a failed request may have one.
        last_seq: The `run` entry; while `running`, the thread's last one.
        iterations: Model calls of the run.
        fallback: The fallback that the run uses, or ended with; absent: its model has had no outage.
        usage: The usage of the run.
        subagent_usage: The usage of the subagents that the run has started, and of theirs.
        error: The error of a failed request.
        unread: The images, recordings and files of the request that the model did not get, and why: by the first 12
            digits of the digest, or by the address.
    """

    request_id: str
    run_id: str | None = None
    status: Literal["completed", "failed", "cancelled", "running"]
    termination_reason: str | None = None
    reason: str | None = None
    answer_seq: int | None = None
    last_seq: int
    iterations: int = 0
    fallback: str | None = None
    usage: Usage = Usage()
    subagent_usage: Usage | None = None
    error: OutcomeError | None = None
    unread: dict[str, str] | None = None


# List prices of a model, and the cost of a usage. The worker knows the prices of each model.


class Price(BaseModel):
    """List prices in USD: of tokens per million, of searches per thousand.

    Attributes:
        input: The price of input tokens that are neither read from the provider's cache nor written to it.
        output: The price of output tokens.
        cached_input: The price of input tokens read from the cache. None: as `input`.
        written_input: The price of input tokens written to the cache. None: as `input`.
        long_written_input: The price of those that the cache keeps for an hour. None: as `written_input`.
        searches: The price of web searches that the provider runs itself. None: it is not known.
        above: The prices hold for calls with more input tokens than this.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    input: float
    output: float
    cached_input: float | None = None
    written_input: float | None = None
    long_written_input: float | None = None
    searches: float | None = None
    above: int = -1


Prices = tuple[Price, ...]
"""The prices of a model, by rising `above`, from -1 on. Empty: they are unknown."""


def compute_cost_usd(prices: Sequence[Price], usage: Usage, searches: int = 0) -> float | None:
    """Compute the cost of one call in USD; None where the prices are unknown.

    `searches`: the web searches that the provider has run for it.
    """
    price = next((price for price in reversed(prices) if usage.input_tokens > price.above), None)
    if price is None:
        return None
    cached, written = usage.cached_input_tokens, usage.written_input_tokens or 0
    long = min(usage.long_written_input_tokens or 0, written)
    written_price = price.input if price.written_input is None else price.written_input
    long_price = written_price if price.long_written_input is None else price.long_written_input
    dollars = (
        (usage.input_tokens - cached - written) * price.input
        + cached * (price.input if price.cached_input is None else price.cached_input)
        + (written - long) * written_price
        + long * long_price
        + usage.output_tokens * price.output
    )
    return dollars / 1_000_000 + searches * (price.searches or 0.0) / 1_000
