"""List prices of a model, and the cost of a usage. The worker knows the prices of each model."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from clew.outcomes import Usage


class Price(BaseModel):
    """List prices in USD per million tokens.

    Attributes:
        input: The price of input tokens that are neither read from the provider's cache nor written to it.
        output: The price of output tokens.
        cached_input: The price of input tokens read from the cache. None: as `input`.
        written_input: The price of input tokens written to the cache. None: as `input`.
        above: The prices hold for calls with more input tokens than this.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    input: float
    output: float
    cached_input: float | None = None
    written_input: float | None = None
    above: int = -1


Prices = tuple[Price, ...]
"""The prices of a model, by rising `above`, from -1 on. Empty: they are unknown."""


def compute_cost_usd(prices: Sequence[Price], usage: Usage) -> float | None:
    """Compute the cost of one call in USD; None where the prices are unknown."""
    price = next((price for price in reversed(prices) if usage.input_tokens > price.above), None)
    if price is None:
        return None
    cached, written = usage.cached_input_tokens, usage.written_input_tokens or 0
    dollars = (
        (usage.input_tokens - cached - written) * price.input
        + cached * (price.input if price.cached_input is None else price.cached_input)
        + written * (price.input if price.written_input is None else price.written_input)
        + usage.output_tokens * price.output
    )
    return dollars / 1_000_000
