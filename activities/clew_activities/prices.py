"""Prices of models: those of a team's own, and list prices from the data that the library `genai-prices` ships.

Nothing is read from the network.
"""

from __future__ import annotations

from decimal import Decimal

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice, TieredPrices

from clew.model.prices import Price, Prices
from clew_activities.model_table import NO_OWN_MODELS, OwnModels


def find_prices(name: str, own: OwnModels = NO_OWN_MODELS) -> Prices:
    """Find the current prices of `provider:model`; empty: they are neither in `own` nor in the library.

    If the library does not know the provider, such as an own gateway, the prices of the model's maker are used.
    """
    if own_price := own.find_price(name):
        return (own_price,)
    provider, _, model = name.partition(":")
    price = _find_model_price(model, provider)
    # A model with a price for each request costs more than its tokens.
    if price is None or price.input_mtok is None or price.output_mtok is None or price.requests_kcount is not None:
        return ()
    units = (price.input_mtok, price.output_mtok, price.cache_read_mtok, price.cache_write_mtok)
    starts = {tier.start for unit in units if isinstance(unit, TieredPrices) for tier in unit.tiers}
    return tuple(_make_price(start, price) for start in sorted({-1} | starts))


def load_prices() -> None:
    """Load the library's data, which takes about 0.2 s."""
    find_prices("openai:gpt-4o")


def _find_model_price(model: str, provider: str | None) -> ModelPrice | None:
    """Find the library's prices of a model: those of its provider, or else of its maker."""
    try:
        get_snapshot().find_provider(None, provider, None)
    except LookupError:
        provider, model = None, model.rpartition("/")[2]
    try:
        return calc_price(Usage(), model, provider_id=provider).model_price
    except LookupError:
        return None


def _make_price(start: int, price: ModelPrice) -> Price:
    """Make the prices of calls with more input tokens than `start`."""
    return Price(
        input=_find_unit_price(price.input_mtok, start) or 0.0,
        output=_find_unit_price(price.output_mtok, start) or 0.0,
        cached_input=_find_unit_price(price.cache_read_mtok, start),
        written_input=_find_unit_price(price.cache_write_mtok, start),
        above=start,
    )


def _find_unit_price(price: Decimal | TieredPrices | None, start: int) -> float | None:
    if isinstance(price, TieredPrices):
        steps = [tier.price for tier in price.tiers if tier.start <= start]
        price = steps[-1] if steps else price.base
    return None if price is None else float(price)
