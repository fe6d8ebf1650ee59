"""Tools for the sessions of the benchmarks."""

from __future__ import annotations

from clew import tool


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@tool
def look_up(order: int) -> str:
    """An order's state."""
    if order % 7 == 0:
        raise LookupError(f"there is no order {order}")
    return f"order {order} is on its way"
