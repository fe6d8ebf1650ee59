"""Tools as one writes one's own: plain functions in one's own package, named to the worker.

    CLEW_TOOLS=examples.tools python worker.py

The signature is the schema, the docstring is what the model reads. What a model sends is validated before the
function sees it, and whatever the function raises becomes a result that the model reads.
"""

import asyncio
from datetime import date, timedelta
from typing import Literal, TypedDict

from clew import ToolContext, tool


class Order(TypedDict):
    """What the shop knows of an order."""

    order_id: int
    status: Literal["packed", "shipped", "delivered"]
    city: str


_ORDERS: dict[int, Order] = {
    1234: {"order_id": 1234, "status": "shipped", "city": "Lisbon"},
    4711: {"order_id": 4711, "status": "packed", "city": "Oslo"},
}
_DAYS_TO = {"Lisbon": 3, "Oslo": 5}


@tool
def lookup_order(order_id: int) -> Order:
    """Look up an order: its status and the city it goes to."""
    if order_id not in _ORDERS:
        raise LookupError(f"there is no order {order_id}")
    return _ORDERS[order_id]


@tool(timeout_seconds=10, retries=2)
async def estimate_delivery(city: str, context: ToolContext) -> str:
    """Say on which day a parcel sent today arrives in a city."""
    context.heartbeat(f"asking the carrier about {city}")
    await asyncio.sleep(0.5)  # the carrier is far away
    return (date.today() + timedelta(days=_DAYS_TO.get(city, 7))).isoformat()
