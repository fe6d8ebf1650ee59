"""What a previewed call would cost.

The reader of a preview prices it, be it a worker or the Python client: the query that counted its tokens is answered
by workflow code, which knows no prices.
"""

from __future__ import annotations

import math

from clew.contract.outputs import ContextMeta
from clew.model.catalog import cost_usd
from clew.outcomes import Usage


def priced(meta: ContextMeta) -> ContextMeta:
    """A preview's `meta` with its costs, where it fits and its model's price is known."""
    if not meta.fits or meta.model is None:
        return meta
    prompt = Usage(input_tokens=math.ceil(meta.estimated_tokens * (meta.token_ratio or 1)))
    whole = prompt.plus(Usage(output_tokens=meta.max_output_tokens or 0))
    costs = {"input_cost_usd": cost_usd(meta.model, prompt), "cost_usd_at_most": cost_usd(meta.model, whole)}
    return meta.model_copy(update=costs)
