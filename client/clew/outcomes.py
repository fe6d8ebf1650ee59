"""How a request stands, and what it used: values that errors, replies and answers share."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

_Number = TypeVar("_Number", int, float)


class Output(BaseModel):
    """The base of what Clew answers: frozen, and open to fields of newer releases."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def as_json(self) -> dict[str, Any]:
        """The plain JSON object that travels; what is absent is left out."""
        return self.model_dump(mode="json", exclude_none=True)


class Usage(Output):
    """Tokens as the providers reported them.

    Requests that joined a run share what it used: the usage of all requests adds up.

    Attributes:
        input_tokens: Tokens of prompts, those from and for the provider's cache included.
        output_tokens: Tokens of replies.
        cached_input_tokens: Tokens of prompts that came from the provider's cache.
        written_input_tokens: Tokens of prompts that were written to its cache, where it charges for that.
        cost_usd: What the calls with a known list price cost by that.
        model_calls: Model calls.
        shared_with: The request whose usage has the numbers of the run that this one joined.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    written_input_tokens: int | None = None
    cost_usd: float | None = None
    model_calls: int = 0
    shared_with: str | None = None

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            written_input_tokens=_sum(self.written_input_tokens, other.written_input_tokens),
            cost_usd=_sum(self.cost_usd, other.cost_usd),
            model_calls=self.model_calls + other.model_calls,
        )


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    """What is known of both together."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


class OutcomeError(Output):
    """Why a request failed.

    Attributes:
        type: The word, for programs.
        message: What happened, for people.
        retryable: Whether the same message may succeed another time.
    """

    type: str
    message: str
    retryable: bool = False


class RequestOutcome(Output):
    """How a request stands. The answer's text is in the thread, so that the history holds it once.

    Attributes:
        request_id: The request.
        run_id: The run that served it.
        status: `running`: not yet, nothing is lost, ask again with `await_request`. The others are final.
        termination_reason: Why the run ended.
        reason: What the caller gave as the reason of a cancellation.
        answer_seq: The entry with the newest text that the model gave; a failed request may have one.
        last_seq: The `run` entry; while `running`, the thread's last one.
        iterations: Model calls of the run.
        usage: What the run used.
        error: Why a failed request failed.
    """

    request_id: str
    run_id: str | None = None
    status: Literal["completed", "failed", "cancelled", "running"]
    termination_reason: str | None = None
    reason: str | None = None
    answer_seq: int | None = None
    last_seq: int
    iterations: int = 0
    usage: Usage = Usage()
    error: OutcomeError | None = None
