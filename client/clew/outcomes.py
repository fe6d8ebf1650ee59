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

    `input_tokens` includes those that came from the provider's cache and those that were written to it, where it
    charges for that and so tells. `cost_usd` is what the calls with a known list price cost by that.

    Requests that joined a run share what it used. The numbers stand with the request that opened the run; the others
    name it in `shared_with` and have none, so that the usage of all requests adds up.
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
    """Why a request failed. `retryable`: the same message may succeed another time."""

    type: str
    message: str
    retryable: bool = False


class RequestOutcome(Output):
    """How a request stands. The answer's text is the entry at `answer_seq`, so that history holds it once.

    `running` means: not yet, and nothing is lost; ask again with `await_request`. `reason` is what the caller who
    cancelled gave as the reason.
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
