"""List prices of models, by the library `genai-prices`: the data that it ships, and nothing from the network."""

from __future__ import annotations

from decimal import Decimal

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice, TieredPrices

from clew.model.prices import Price, Prices


def find_prices(name: str) -> Prices:
    """The prices of `provider:model` at this moment; none where the library does not know them.

    A provider that the library does not know, such as a gateway of one's own, is taken to charge what the model's
    maker does.
    """
    provider, _, model = name.partition(":")
    price = _find(model, provider)
    # A call that is charged by more than its tokens would cost more than they tell.
    if price is None or price.input_mtok is None or price.output_mtok is None or price.requests_kcount is not None:
        return ()
    units = (price.input_mtok, price.output_mtok, price.cache_read_mtok, price.cache_write_mtok)
    starts = {tier.start for unit in units if isinstance(unit, TieredPrices) for tier in unit.tiers}
    return tuple(_above(start, price) for start in sorted({-1} | starts))


def load_prices() -> None:
    """Load the library's data, which takes some 0.2 s."""
    find_prices("openai:gpt-4o")


def _find(model: str, provider: str | None) -> ModelPrice | None:
    """The library's prices of a model: those of its provider, or else of its maker."""
    try:
        get_snapshot().find_provider(None, provider, None)
    except LookupError:
        provider, model = None, model.rpartition("/")[2]
    try:
        return calc_price(Usage(), model, provider_id=provider).model_price
    except LookupError:
        return None


def _above(start: int, price: ModelPrice) -> Price:
    """The prices of calls with more input tokens than `start`."""
    return Price(
        input=_unit(price.input_mtok, start) or 0.0,
        output=_unit(price.output_mtok, start) or 0.0,
        cached_input=_unit(price.cache_read_mtok, start),
        written_input=_unit(price.cache_write_mtok, start),
        above=start,
    )


def _unit(price: Decimal | TieredPrices | None, start: int) -> float | None:
    if isinstance(price, TieredPrices):
        steps = [tier.price for tier in price.tiers if tier.start <= start]
        price = steps[-1] if steps else price.base
    return None if price is None else float(price)
