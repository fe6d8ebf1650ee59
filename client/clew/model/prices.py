"""List prices of a model, and what a usage costs by them. Which model has which prices, workers know."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from clew.outcomes import Usage


class Price(BaseModel):
    """List prices in USD per million tokens.

    Attributes:
        input: Of input tokens that are neither cached nor written.
        output: Of output tokens.
        cached_input: Of input tokens that the provider had in its cache. None: like `input`.
        written_input: Of input tokens that the provider put into its cache. None: like `input`.
        above: The prices are for calls with more input tokens than this.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    input: float
    output: float
    cached_input: float | None = None
    written_input: float | None = None
    above: int = -1


Prices = tuple[Price, ...]
"""The prices of a model, by rising `above`; the first one's is -1. None at all: they are not known."""


def compute_cost_usd(prices: Sequence[Price], usage: Usage) -> float | None:
    """What one call costs by list prices, in USD; None where they are not known."""
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
