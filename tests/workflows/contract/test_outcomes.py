"""The cost of model calls by list price."""

from __future__ import annotations

import pytest

from clew_workflows.contract.outcomes import Price, Prices, Usage, compute_cost_usd

PLAIN = (Price(input=2, output=10),)
CACHING = (Price(input=2, output=10, cached_input=0.5, written_input=3),)
STEPS = (Price(input=2, output=10), Price(input=4, output=15, above=1_000))


@pytest.mark.parametrize(
    ("prices", "usage", "dollars"),
    [
        (PLAIN, Usage(input_tokens=1_000, output_tokens=100), 3_000),
        (PLAIN, Usage(input_tokens=1_000, cached_input_tokens=400, written_input_tokens=100), 2_000),
        (CACHING, Usage(input_tokens=1_000, cached_input_tokens=400), 1_400),
        (CACHING, Usage(input_tokens=1_000, cached_input_tokens=400, written_input_tokens=100), 1_500),
        (STEPS, Usage(input_tokens=1_000, output_tokens=10), 2_100),
        (STEPS, Usage(input_tokens=1_001, output_tokens=10), 4_154),
        (PLAIN, Usage(), 0),
        ((), Usage(input_tokens=5), None),
    ],
)
def test_what_a_usage_costs(prices: Prices, usage: Usage, dollars: float | None) -> None:
    """Cached and written tokens are part of the input; a long call costs the higher price whole; unknown is not 0."""
    cost = compute_cost_usd(prices, usage)
    assert cost == (None if dollars is None else pytest.approx(dollars / 1e6))


def test_what_some_providers_tell_adds_up_over_those_that_do() -> None:
    """A sum knows what either part knows; what neither knows is not 0, and does not travel."""
    some, more = Usage(written_input_tokens=3, cost_usd=0.5), Usage(input_tokens=9)
    assert some.plus(more) == more.plus(some) == Usage(input_tokens=9, written_input_tokens=3, cost_usd=0.5)
    assert some.plus(some).cost_usd == 1.0
    assert set(more.plus(more).as_dict()) == {"input_tokens", "output_tokens", "cached_input_tokens", "model_calls"}
