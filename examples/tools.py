"""Examples of tools: plain functions in a package, which the worker's setting CLEW_TOOLS names.

    clew worker --tools examples.tools

Clew makes the tool's schema from the signature and its description from the docstring. It validates the model's
arguments before it calls the function. If the function raises, the error becomes a tool result for the model.
"""

import asyncio
from datetime import date, timedelta
from typing import Literal, TypedDict

from clew import ToolContext, tool


class Order(TypedDict):
    """An order of the shop."""

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
    context.report(f"asking the carrier about {city}")
    await asyncio.sleep(0.5)  # stands for a call to the carrier
    return (date.today() + timedelta(days=_DAYS_TO.get(city, 7))).isoformat()
