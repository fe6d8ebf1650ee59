"""The agent of the chat service, and its tools. One of them needs a person's approval."""

import os

from clew import Agent, tool
from examples.tools import estimate_delivery, lookup_order


@tool(requires_approval=True, idempotent=False)
def refund(order_id: int, euros: float) -> str:
    """Pay the price of an order back."""
    return f"{euros:.2f} EUR of order {order_id} were paid back"


shop = Agent(
    "shop",
    model=os.environ.get("SHOP_MODEL", "local:smollm2"),
    system_prompt="You help customers of a shop with their orders. Look an order up before you speak about it.",
    tools=[lookup_order, estimate_delivery, refund],
)
