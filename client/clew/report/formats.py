"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import datetime

THIN_SPACE = "\u202f"
"""Separates groups of three digits."""


def format_number(number: float) -> str:
    """Format a number with spaces between thousands."""
    return f"{number:,.0f}".replace(",", THIN_SPACE)


def format_percent(portion: float) -> str:
    """Format a share from 0 to 1."""
    return f"{portion:.0%}"


def format_dollars(amount: float | None) -> str:
    """Format an amount in dollars: to the cent, or to the hundredth of a cent below ten cents."""
    if amount is None:
        return "not known"
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.4f}"


def format_seconds(seconds: float | None) -> str:
    """Format a duration."""
    if seconds is None:
        return ""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def format_bytes(size: int) -> str:
    """Format a size."""
    return f"{size} bytes" if size < 2000 else f"{size / 1000:.0f} kB" if size < 2_000_000 else f"{size / 1e6:.1f} MB"


def format_time(at: str) -> str:
    """Format the time of an entry to the second, in UTC."""
    try:
        return datetime.fromisoformat(at).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at
