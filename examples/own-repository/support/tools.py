"""The tools of the support agent. The shop's database stands here as a dictionary."""

from typing import TypedDict

from clew import ToolContext, tool


class Order(TypedDict):
    """An order of the shop."""

    status: str
    cents: int


ORDERS: dict[int, Order] = {1234: {"status": "shipped", "cents": 4200}}
REFUNDS: dict[str, int] = {}


@tool
def lookup_order(order_id: int) -> Order:
    """Look up an order: its status and what it cost.

    Args:
        order_id: The number on the invoice.
    """
    if order_id not in ORDERS:
        raise LookupError(f"there is no order {order_id}")
    return ORDERS[order_id]


@tool(idempotent=False, requires_approval=True)
async def refund(order_id: int, context: ToolContext) -> str:
    """Pay an order back."""
    REFUNDS.setdefault(context.idempotency_key, ORDERS[order_id]["cents"])  # a bank takes such a key, too
    return f"{ORDERS[order_id]['cents'] / 100:.2f} EUR are on their way"
